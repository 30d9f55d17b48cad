"""The parts of ``ebbtide simulate``: loads, cost model, compared policies, simulation on a virtual clock, report."""
