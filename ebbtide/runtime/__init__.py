"""Process plumbing: channels, child processes, clocks, threads and logs."""
