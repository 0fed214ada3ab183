//! Exact decisions in small cases, and what holds under random loads.
