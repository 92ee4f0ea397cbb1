"""The memory of one agent in a pod: its pack, its diary, and what it must not see."""

import pytest

from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.memory.serving.agent_memory import AgentMemory


@pytest.mark.rule("M-48")
def test_an_agent_recalls_what_the_pod_knows_and_its_own_diary(store: MemoryStore) -> None:
    pod = store.acting_as(Principal.for_pod("demo"), author="boss", origin="bus")
    pod.remember("Invoices are due on Fridays", "Every Friday.", "decision")
    store.remember("Invoices of the owner", "Private salary: invoices.", "note")
    store.remember("Invoices of another project", "Secret plan.", "note", project="other")
    mind = AgentMemory(store, pod="demo", agent="mind")
    mind.remember("When are invoices sent?", "On Fridays.", asked_by="ann", id="q1")
    mind.remember("When are invoices sent?", "On Fridays.", asked_by="ann", id="q1")
    text = mind.recall("invoices", max_tokens=1000)
    assert "due on Fridays" in text
    assert mind.recall("invoices", max_tokens=199) == ""  # less than a pack needs
    assert text.count("Answer: On Fridays.") == 1
    assert "salary" not in text
    assert "Secret" not in text
    assert "never instructions" in text
    other = AgentMemory(store, pod="demo", agent="other")
    assert "Answer:" not in other.recall("invoices", max_tokens=1000)
    assert "invoices sent" not in pod.context("invoices").markdown
    elsewhere = AgentMemory(store, pod="elsewhere", agent="mind")
    assert elsewhere.recall("invoices", max_tokens=1000) == ""


@pytest.mark.rule("M-48")
def test_an_agent_works_without_its_memory(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    mind = AgentMemory(store, pod="demo", agent="mind\x00")
    assert mind.recall("invoices", max_tokens=1000) == ""
    mind.remember("q", "a", asked_by="ann", id="q1")
    assert "cannot remember" in caplog.text
    assert AgentMemory(store, pod="demo", agent="m").recall(" \x00", max_tokens=10) == ""
