import pytest, time
from itertools import combinations_with_replacement
from tests.databases import Server
from tests.interleavings.calls import CALLS, CORE
from tests.interleavings.stepping import stand
def test_try(server, database):
    with stand(server, database) as q:
        t=time.time(); n=0
        for name in CORE:
            for w in q.wrong((name,name)): print(w)
            print(name, time.time()-t)
