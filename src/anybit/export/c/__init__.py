"""C artifacts: a network compiled into flash, C99, without malloc."""
