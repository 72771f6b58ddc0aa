"""The requests of gateways at a lead runner: in, answered, ended once."""
