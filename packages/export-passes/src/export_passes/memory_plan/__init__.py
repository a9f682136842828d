"""Planning of memory: blocks with lifetimes get offsets in one buffer a device and kind, verified and drawn."""
