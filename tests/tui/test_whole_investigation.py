"""Someone who never saw the tool presses Enter, and arrives at a memo; an owner closes it by keys alone."""

from __future__ import annotations

from pathlib import Path

from conftest import SESSION, Opener, run

from sparsetui.flow import OWNERS
from sparsetui.session.closure import TITLES, gates


def test_enter_alone_goes_from_the_first_page_to_an_exported_memo(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop() as d:
            for _ in range(12):
                await d.press("enter")
                if d.app.desk.exported:
                    break
            assert d.runner.calls == [
                "ingress",
                "lowering",
                "kernel",
                "execution",
                "validation",
                "intervene kernel.wrong-orientation",
                "conclude",
            ]
            memo = tmp_path / "store" / SESSION / "memo.md"
            assert d.app.desk.exported == memo
            assert "kernel.wrong-orientation" in memo.read_text()
            assert memo.stat().st_mode & 0o777 == 0o600
            assert str(memo) in d.note
            assert d.app.desk.exit_code == 1

    run(body())


def test_the_first_run_of_a_workload_tells_which_files_it_runs_and_esc_runs_none(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press("enter")
            assert "serving.py:build_pruned" in d.text()
            assert "serving.py" in d.text()
            await d.press("escape")
            assert not d.made.runners
            await d.press("r", "enter")
            assert d.runner.calls == ["ingress"]
            await d.press("r")
            assert d.runner.calls == ["ingress", "ingress"], "it asks once"

    run(body())


def test_owners_artifacts_waivers_and_closing_by_keys(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.investigate()
            await d.press("o")
            roles = d.app.sheet.query_one("#roles")
            assert roles.has_focus
            for role in OWNERS.values():
                assert roles.key == role
                if not d.app.desk.state.owners.get(role):
                    await d.press("enter", *"@ann", "enter")
                await d.press("enter", "enter", "enter")  # attach: the evidence that is offered, no reason
                await d.press("enter", "enter", "enter")  # sign off: the owner's name, no note
                await d.press("down")
            state = d.app.desk.state
            assert set(state.owners) == set(OWNERS.values())
            assert {a["role"] for a in state.artifacts} == {s["role"] for s in state.signoffs} == set(OWNERS.values())

            await d.press("c")
            assert "gates do not hold" in d.note, "open gates keep it from closing"
            assert not roles.has_focus, "Down went on from the last role to the gates"
            for gate in gates(d.app.desk.state):
                if gate.state not in ("passed", "waived"):
                    await d.press("w", *"canary", "enter", *"ann", "enter")
                await d.press("down")
            assert all(g.state in ("passed", "waived") for g in gates(d.app.desk.state))
            assert all(w["why"] == "canary" and w["by"] == "ann" for w in d.app.desk.state.waivers)
            assert len(gates(d.app.desk.state)) == len(TITLES)

            await d.press("c", *"ann", "enter")
            assert d.app.desk.state.closed == "ann"
            assert d.runner.closed, "the runner gave the session back before it was closed"
            assert "closed by ann" in d.text()
            await d.press("escape", "e")
            assert d.app.desk.exported.read_text().startswith("# CLOSED")

    run(body())


def test_a_waiver_needs_a_reason_and_a_name(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.investigate()
            await d.press("o", "tab")
            while d.app.sheet._gate_here().state == "passed":
                await d.press("down")
            await d.press("w", "enter", "enter")
            assert "cannot be empty" in d.text()
            await d.press("escape")
            assert not d.app.desk.state.waivers

    run(body())


def test_a_saved_session_is_read_and_gone_on_with(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press("enter", "enter", "enter")
            assert d.runner.calls == ["ingress", "lowering"]
        async with desktop(start={"session": SESSION}) as d:
            assert "run kernel selection" in d.text()
            await d.press("enter", "enter")
            assert d.runner.calls == ["kernel"]
            assert d.app.desk.state.id == SESSION
            assert {e.probe for e in d.app.desk.state.evidence} >= {"lock", "census", "native"}

    run(body())


def test_a_playbook_is_chosen_in_the_app_and_given_to_the_runner(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("P", "enter")
            chosen = d.app.desk.playbook
            assert f"follows {chosen.id}" in d.note
            await d.press("escape")
            asked = next(s for s in chosen.steps if s.stage == "ingress")
            assert asked.ask[:30] in d.text(), "the guide says what the playbook asks at this stage"
            await d.press("enter", "enter")
            assert d.made.given["playbook"] is chosen
            await d.press("P", "enter")
            assert "has begun" in d.note

    run(body())


def test_closure_of_an_opened_session_is_written_by_a_process_of_its_own_that_gives_it_back(
    desktop: Opener, tmp_path: Path
) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.investigate()
        async with desktop((120, 36), start={"session": SESSION}) as d:
            (tmp_path / "ranker.toml").unlink()  # nobody needs the workload for a signature
            await d.press("o", "d", *"ann", "enter", "enter")
            assert not d.made.runners
            assert [s["who"] for s in d.app.desk.state.signoffs] == ["ann"]
            assert "ann" in d.text()
            reader = d.app.desk.store.open(SESSION)
            assert reader.state().signoffs, "it is in the ledger"
            assert not reader.writing, "anybody may write it now"

    run(body())
