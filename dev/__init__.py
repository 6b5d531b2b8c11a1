"""The whole system on one machine, for people who develop it or try it: never part of production."""
