"""Serve tickets by the Model Context Protocol, over standard input and output. Any MCP server will do in its place."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("tickets")
TICKETS = {"T1": "api answers slowly", "T2": "web shows old prices"}


@server.tool()
def search(word: str) -> dict[str, str]:
    """Return the tickets whose title has a word, by their numbers."""
    return {number: title for number, title in TICKETS.items() if word.lower() in title}


@server.tool()
def close(number: str) -> str:
    """Close a ticket."""
    return f"{number} is closed: {TICKETS.pop(number)}"


if __name__ == "__main__":
    server.run()
