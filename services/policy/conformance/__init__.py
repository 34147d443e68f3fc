"""`swingshift policy test`: whether a policy keeps what every policy promises, on runs made up for it."""
