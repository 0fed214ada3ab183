"""Other systems measured beside Forebay; see README.md in this directory."""
