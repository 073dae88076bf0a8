"""Models and programs that ours are measured beside; their libraries are imported when called."""
