"""Infrastructure of the processes: channels, child processes, clocks, threads and logs."""
