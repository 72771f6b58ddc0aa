"""The connections to lead runners: credit, liveness, one DEALER each."""
