"""For `gateway capacity`: what was measured, and how much of everything follows from it; no I/O."""
