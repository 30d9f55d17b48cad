"""The parts of ``ebbtide simulate``: loads, cost model, compared policies, virtual clock, report."""
