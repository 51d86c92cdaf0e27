"""Who acts, in which order, and who sees whose reply: data only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Agent:
    """One role. sees: agents of the same turn whose reply and simulated result it is shown."""

    name: str
    acts: bool
    sees: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Agents that reply at the same time, from the same state."""

    agents: tuple[Agent, ...]


@dataclass(frozen=True)
class Workflow:
    """One turn as a sequence of stages."""

    name: str
    stages: tuple[Stage, ...]

    @property
    def agents(self) -> tuple[Agent, ...]:
        """All agents in speaking order; Groups.agent_B indexes this."""
        return tuple(agent for stage in self.stages for agent in stage.agents)


TOOL = Agent("tool", acts=False)
PLANNER = Agent("planner", acts=True, sees=("tool",))
SOLO = Agent("solo", acts=True)

WORKFLOWS = {
    "planner_tool": Workflow("planner_tool", (Stage((TOOL,)), Stage((PLANNER,)))),
    "solo": Workflow("solo", (Stage((SOLO,)),)),
}
