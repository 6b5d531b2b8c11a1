"""Run the whole system on one machine, to develop it or to try it. No part of this runs in production."""
