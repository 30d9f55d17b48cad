"""The parts of ``ebbtide simulate``: loads, the cost model, the rules compared, the virtual clock, the report."""
