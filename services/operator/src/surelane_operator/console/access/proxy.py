"""A trusted proxy in front of the page signs people in, and names them in a header of each request."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from surelane_operator.console.access.sessions import Signer
from surelane_operator.console.access.viewer import Groups, Viewer

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """People by a proxy's headers: ``user`` names a person, and ``groups_header`` their groups, separated by commas.

    Headers from elsewhere than the proxies' ``addresses`` are refused. ``signer`` makes the CSRF tokens.
    """

    user: str
    groups_header: str | None
    addresses: Sequence[Network]
    groups: Groups
    signer: Signer

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return whom the proxy names; ``None`` where no header came.

        Raises:
            web.HTTPForbidden: the header does not come from the proxy, or names a person who may not see the page.
        """
        names = request.headers.getall(self.user, [])
        if not names:
            return None
        if not self._is_proxy(request.remote or ""):
            raise _forbidden(f"{self.user} is taken from the trusted proxy alone")
        if len(names) > 1 or not names[0].strip() or len(names[0]) > LONGEST_NAME:
            raise _forbidden(f"{self.user} does not name one person")
        name = names[0].strip()
        listed = request.headers.getall(self.groups_header, []) if self.groups_header else []
        groups = {group.strip() for line in listed for group in line.split(",")}
        role = self.groups.role(groups)
        if role is None:
            raise _forbidden(f"{name} is in no group that may see this page")
        return Viewer(name, role, self.signer.digest("csrf", name))

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed.version == network.version and parsed in network for network in self.addresses)


def _forbidden(error: str) -> web.HTTPForbidden:
    return web.HTTPForbidden(text=json.dumps({"error": error}), content_type="application/json")
