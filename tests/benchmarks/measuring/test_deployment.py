from benchmarks.measuring.deployment import Deployment
from draft_service.settings import DraftSettings
from orchestrator.settings import OrchestratorSettings
from specdec.cli.three_services import ThreeServices
from tests.specdec.cli.test_three_services import read


def test_all_drafters_stand_in_front_of_one_target() -> None:
    base = ThreeServices(model="some-model", num_threads=1)
    deployment = Deployment.plan(base, ("model", "suffix"), "small-model")
    target, *others = deployment.specs
    assert [spec.name for spec in deployment.specs] == [
        "target",
        "draft-model",
        "orchestrator-model",
        "draft-suffix",
        "orchestrator-suffix",
    ]
    assert len({spec.address for spec in deployment.specs}) == 5
    for draft_spec, orchestrator_spec, kind in zip(others[::2], others[1::2], ("model", "suffix"), strict=True):
        draft, orchestrator = read(draft_spec, DraftSettings), read(orchestrator_spec, OrchestratorSettings)
        assert draft.drafter == kind
        assert (orchestrator.target, orchestrator.draft) == (target.address, draft_spec.address)
        assert deployment.addresses[draft.drafter] == orchestrator_spec.address
        assert draft.num_threads == 1
    assert read(others[0], DraftSettings).model == "small-model"
