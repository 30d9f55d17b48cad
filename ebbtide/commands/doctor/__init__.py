"""``ebbtide doctor``: checks of this machine."""
