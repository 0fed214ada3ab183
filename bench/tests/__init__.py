"""Tests of the benchmarks' own machinery: `cd bench && python3 -m unittest`. They need no peer and no particular speed."""
