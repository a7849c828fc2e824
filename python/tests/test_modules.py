"""The modules are torch modules in every respect."""

import copy
import io
import pickle

import pytest
import torch
from makers import BIJECTIONS, KINDS, MODULES, Branch, images, started
from torch import nn

import invattn

every_module = pytest.mark.parametrize("name", MODULES)
with_weights = pytest.mark.parametrize("name", [name for name in MODULES if name != "squeeze"])
every_bijection = pytest.mark.parametrize("name", BIJECTIONS)


def perturb(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


@with_weights
def test_weights_are_parameters(name):
    module, _ = started(*MODULES[name])
    parameters = list(module.parameters())
    assert parameters and all(type(parameter) is nn.Parameter and parameter.is_leaf for parameter in parameters)
    around = nn.Sequential(module, nn.Flatten())
    assert len(list(around.parameters())) == len(parameters)
    assert [key.removeprefix("0.") for key in around.state_dict()] == list(module.state_dict())


@with_weights
def test_gradients_reach_every_weight(name):
    module, x = started(*MODULES[name])
    perturb(module)
    module(x).square().sum().backward()
    for key, parameter in module.named_parameters():
        # Of a flow's prior, and of shifts that cancel in a softmax, the latents know nothing.
        if key not in ("prior_mean", "prior_log_deviation"):
            assert parameter.grad is not None, key


@every_module
def test_state_dict_goes_over(name):
    one, x = started(*MODULES[name])
    perturb(one)
    other, _ = started(*MODULES[name])
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(x), one(x))


@with_weights
def test_assigned_weights_are_used(name):
    one, x = started(*MODULES[name])
    perturb(one)
    other, _ = started(*MODULES[name])
    other.load_state_dict(copy.deepcopy(one.state_dict()), assign=True)
    assert torch.equal(other(x), one(x))
    other(x).square().sum().backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in other.parameters())


@every_module
def test_double_and_back(name):
    module, x = started(*MODULES[name])
    with torch.no_grad():
        single = module(x)
        assert module.double() is module
        assert all(tensor.dtype == torch.float64 for tensor in module.state_dict().values())
        torch.testing.assert_close(module(x.double()).float(), single, rtol=1e-4, atol=1e-5)
        assert module.to(torch.float32) is module
        torch.testing.assert_close(module(x), single, rtol=1e-4, atol=1e-5)
        module.to("cpu"), module.to(device="cpu"), module.to(x)


@every_module
def test_mode_reaches_the_parts(name):
    around = nn.Sequential(MODULES[name][0]())
    around.eval()
    assert not any(module.training for module in around.modules())
    assert around[0].train() is around[0] and around[0].training


@pytest.mark.parametrize("name", ["actnorm", "sequential", "flow"])
def test_evaluation_mode_starts_nothing(name):
    make, make_input = MODULES[name]
    module = make().eval()
    module(make_input())
    norms = [part for part in module.modules() if isinstance(part, invattn.ActNorm)]
    assert norms and all(norm.started.item() == 0 for norm in norms)
    module.train()(make_input())
    assert all(norm.started.item() == 1 for norm in norms)


@with_weights
def test_an_optimiser_changes_what_is_computed(name):
    module, x = started(*MODULES[name])
    perturb(module)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    before = module(x)
    before.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert not torch.equal(module(x), before)


@with_weights
def test_functional_call(name):
    module, x = started(*MODULES[name])
    perturb(module)
    before = module(x)
    others = {key: (parameter.detach() * 0.5).requires_grad_() for key, parameter in module.named_parameters()}
    reference = copy.deepcopy(module)
    reference.load_state_dict({**module.state_dict(), **{key: value.detach() for key, value in others.items()}})
    value = torch.func.functional_call(module, others, (x,))
    torch.testing.assert_close(value, reference(x))
    gradients = torch.autograd.grad(value.square().sum(), list(others.values()), allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    assert torch.equal(module(x), before), "the weights of the module are its own again"


def test_functional_call_of_a_part_leaves_the_whole_alone():
    chain = invattn.Sequential(invattn.InvertibleAttention(3, kind="dot-product"), invattn.InvertibleAttention(3))
    perturb(chain)
    x = images()
    before = chain(x)
    part = chain[0]
    torch.func.functional_call(part, {key: torch.zeros_like(value) for key, value in part.named_parameters()}, (x,))
    assert torch.equal(chain(x), before)
    flow, y = started(*MODULES["flow"])
    perturb(flow)
    before = flow(y)
    inner = next(module for module in flow.modules() if isinstance(module, invattn.InvertibleResidual))
    zeros = {key: torch.zeros_like(value) for key, value in inner.named_parameters()}
    torch.func.functional_call(inner, zeros, (torch.randn(1, 12, 2, 2),))
    assert torch.equal(flow(y), before)


@with_weights
def test_parametrisations_are_used(name):
    module, x = started(*MODULES[name])
    perturb(module)
    key = next(key for key, parameter in module.named_parameters() if "prior" not in key)
    owner = module.get_submodule(key.rpartition(".")[0])

    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    reference = copy.deepcopy(module)
    with torch.no_grad():
        reference.get_parameter(key).div_(2)
    nn.utils.parametrize.register_parametrization(owner, key.rpartition(".")[2], Halved())
    torch.testing.assert_close(module(x), reference(x))
    module(x).square().sum().backward()


@every_module
def test_deepcopy(name):
    module, x = started(*MODULES[name])
    perturb(module)
    generator = torch.random.get_rng_state()
    other = copy.deepcopy(module)
    assert torch.equal(torch.random.get_rng_state(), generator), "a copy draws no numbers"
    assert torch.equal(other(x), module(x)) and not other.training
    before = module(x)
    perturb(other)
    assert torch.equal(module(x), before)


@every_module
@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_pickle(name, how):
    module, x = started(*MODULES[name])
    perturb(module)
    for parameter in list(module.parameters())[:1]:
        parameter.requires_grad_(False)
    if how == "pickle":
        other = pickle.loads(pickle.dumps(module))
    else:
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert torch.equal(other(x), module(x)) and not other.training
    assert [parameter.requires_grad for parameter in other.parameters()] == [parameter.requires_grad for parameter in module.parameters()]


def test_a_part_of_a_copy_belongs_to_the_copy():
    flow, x = started(*MODULES["flow"])
    perturb(flow)
    other = copy.deepcopy(flow)
    guard = invattn.Guard(other, fraction=1)
    other.train()(x)
    assert guard.penalty().requires_grad and guard.last_largest > 0
    part = copy.deepcopy(next(module for module in flow.modules() if isinstance(module, invattn.InvertibleAttention)))
    perturb(part)
    part(torch.randn(1, part.branch.options.channels, 2, 2))


def test_certificates_go_along():
    block = invattn.InvertibleAttention(3)
    x = images()
    guard = invattn.Guard(block, fraction=1)
    guard.finish(block, [x], "two random images")
    certificate = block.certificate
    assert certificate.basis == "measured" and certificate.data == "two random images"
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert other.certificate == certificate
        perturb(other)
        assert other.certificate.basis == "nothing", "it lapses when the weights change"


@every_module
def test_hooks_are_called(name):
    make, make_input = MODULES[name]
    module = make()
    seen = []
    module.register_forward_hook(lambda *_: seen.append("forward"))
    module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    module(make_input().requires_grad_()).sum().backward()
    assert seen == ["before", "forward", "backward"]


def test_hooks_of_a_chain_are_called_and_others_inside_are_warned_of():
    chain, x = started(*MODULES["sequential"])
    seen = []
    chain[2].register_forward_hook(lambda *_: seen.append("part"))
    chain(x)
    assert seen == ["part"]
    with pytest.warns(invattn.InvattnWarning, match="never called"):
        chain[2].branch.register_forward_hook(lambda *_: None)
    attention = invattn.Attention(3)
    attention.register_forward_hook(lambda *_: None)
    with pytest.warns(invattn.InvattnWarning, match="never called"):
        invattn.InvertibleResidual(attention)


@every_module
def test_gradcheck(name):
    module, x = started(*MODULES[name], dtype=torch.float64)
    perturb(module)
    x = x[:1].requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    assert torch.autograd.gradgradcheck(module, (x,))


def loosen(module):
    """Spectral norms below their constant: their derivatives, of power iterations to a tolerance, then do not enter."""
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if "branch.weight" in key or key.startswith("weight"):
                parameter.mul_(0.1)


@with_weights
def test_gradcheck_of_the_weights(name):
    module, x = started(*MODULES[name], dtype=torch.float64)
    perturb(module)
    loosen(module)
    keys = [key for key, _ in module.named_parameters() if "prior" not in key]
    weights = [parameter.detach().clone().requires_grad_() for key, parameter in module.named_parameters() if key in keys]

    def value(*given):
        return torch.func.functional_call(module, dict(zip(keys, given)), (x[:1],))

    assert torch.autograd.gradcheck(value, weights, fast_mode=True)


@every_bijection
def test_inverse_comes_with_a_report(name):
    module, x = started(*BIJECTIONS[name])
    with torch.no_grad():
        y = module(x)
        back, report = module.inverse(y, tolerance=1e-6)
    assert report.usable and report.converged_count == len(report) == len(x)
    torch.testing.assert_close(back, x, rtol=1e-4, atol=1e-3)
    assert report.residual.shape == (len(x),) and report.residual.dtype == torch.float64
    assert set(report.statuses) <= {"exact", "converged"}
    assert report.brief() in repr(report) and report.brief().splitlines()[0] in str(report)
    assert not back.requires_grad


@every_bijection
@pytest.mark.parametrize("solver", ["fixed-point", "anderson", "newton-krylov"])
def test_every_solver(name, solver):
    module, x = started(*BIJECTIONS[name])
    with torch.no_grad():
        back, report = module.inverse(module(x), solver, tolerance=1e-5)
    assert report.usable
    torch.testing.assert_close(back, x, rtol=1e-3, atol=1e-2)


@every_bijection
def test_log_determinants_agree_with_the_jacobian(name):
    module, x = started(*BIJECTIONS[name], dtype=torch.float64)
    x = x[:1]
    jacobian = torch.autograd.functional.jacobian(module, x).reshape(x.numel(), x.numel())
    y, log_det = module.forward_log_det(x, "exact")
    torch.testing.assert_close(y, module(x))
    torch.testing.assert_close(log_det.value, torch.linalg.slogdet(jacobian).logabsdet[None], rtol=1e-6, atol=1e-8)
    once, twice = (module.forward_log_det(x, "series", terms=5, seed=3)[1].value for _ in range(2))
    assert torch.equal(once, twice)
    if name in ("sequential", "flow"):
        assert log_det.value.requires_grad


@every_bijection
def test_gradcheck_of_the_inverse(name):
    module, x = started(*BIJECTIONS[name], dtype=torch.float64)
    loosen(module)
    y = module(x[:2]).detach().requires_grad_()

    def inverse(y):
        return module.inverse(y, "newton-krylov", tolerance=1e-13)[0]

    assert torch.autograd.gradcheck(inverse, (y,), atol=1e-6)
    keys = [key for key, _ in module.named_parameters() if "prior" not in key]
    if not keys:
        return
    weights = [module.get_parameter(key).detach().clone().requires_grad_() for key in keys]

    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, y):
            return self.module.inverse(y, "newton-krylov", tolerance=1e-13)[0]

    wrapped = Inverse()

    def of_weights(*given):
        return torch.func.functional_call(wrapped, {f"module.{key}": value for key, value in zip(keys, given)}, (y.detach(),))

    assert torch.autograd.gradcheck(of_weights, weights, atol=1e-6, fast_mode=True)


def test_samples_are_differentiable_in_the_prior():
    flow, _ = started(*MODULES["flow"], dtype=torch.float64)
    x, report = flow.sample(2, seed=3, tolerance=1e-10)
    assert report.usable
    x.square().sum().backward()
    assert flow.prior_mean.grad.abs().sum() > 0 and flow.prior_log_deviation.grad.abs().sum() > 0


def test_the_second_derivative_of_an_inverse_is_refused():
    block, x = started(*MODULES["dot-product"], dtype=torch.float64)
    y = block(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(block.inverse(y)[0].sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match="at most one derivative"):
        gradient.sum().backward()


@every_module
def test_repr_shows_the_options(name):
    module = MODULES[name][0]()
    text = repr(module)
    assert type(module).__name__ in text
    if hasattr(module, "options"):
        first = type(module.options).fields()[0][0]
        assert f"{first}=" in text, text


def test_a_loaded_chain_runs_the_hooks_of_its_parts(tmp_path):
    chain, x = started(*MODULES["sequential"])
    invattn.save(tmp_path / "chain.safetensors", chain)
    loaded = invattn.load(tmp_path / "chain.safetensors")
    seen = []
    loaded[2].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(loaded(x), chain(x))
    assert seen == [1]
    assert torch.equal(copy.deepcopy(loaded)(x), loaded(x))


def test_the_guard_looks_in_full_precision_under_autocast():
    block, x = started(*MODULES["gaussian"])
    perturb(block)
    guard = invattn.Guard(block, fraction=1, target=1e-3)
    block(x)
    expected = guard.penalty()
    other = invattn.Guard(block, fraction=1, target=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(x)
        assert torch.equal(other.penalty(), expected)


def test_repr_of_a_block_shows_its_branch():
    assert "kind=dot-product" in repr(invattn.InvertibleAttention(4, kind="dot-product"))


@every_module
def test_torch_compile(name):
    module, x = started(*MODULES[name])
    torch._dynamo.reset()
    x.requires_grad_()
    compiled = torch.compile(lambda x: module(x * 2).square() + 1, backend="eager")
    torch.testing.assert_close(compiled(x), module(x * 2).square() + 1)
    compiled(x).sum().backward()


def test_a_block_costs_one_graph_break():
    block, x = started(*MODULES["gaussian"])
    torch._dynamo.reset()
    explained = torch._dynamo.explain(lambda x: block(x * 2) + 1)(x)
    assert explained.graph_break_count == 1


def test_fullgraph_says_what_to_do():
    block, x = started(*MODULES["gaussian"])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Leave fullgraph=False"):
        torch.compile(lambda x: block(x * 2), backend="eager", fullgraph=True)(x)


def test_vmap_and_transforms_say_what_to_do():
    block, x = started(*MODULES["gaussian"])
    with pytest.raises(invattn.UsageError, match="in place of vmap"):
        torch.func.vmap(lambda one: block(one[None])[0])(x)
    with pytest.raises(invattn.UsageError, match="torch.autograd"):
        torch.func.grad(lambda x: block(x).sum())(x)


def test_data_parallel_says_what_to_do():
    block = invattn.InvertibleAttention(3)
    with pytest.raises(invattn.UsageError, match="DistributedDataParallel"):
        block._replicate_for_data_parallel()  # what replicate() calls, which needs GPUs before that


@pytest.mark.parametrize("name", [*KINDS, "convolution", "sequential", "flow", "actnorm"])
def test_autocast_computes_in_the_type_of_the_weights(name):
    module, x = started(*BIJECTIONS[name])
    expected = module(x)
    samples = module.sample(2, seed=1)[0] if name == "flow" else None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x), expected)
        assert module(x.bfloat16()).dtype == torch.float32
        back, report = module.inverse(expected.detach())
        assert report.usable and torch.is_autocast_enabled("cpu")
        if name == "flow":
            assert torch.equal(module.sample(2, seed=1)[0], samples)


def test_a_part_cannot_be_replaced_in_silence():
    block = invattn.InvertibleAttention(3)
    with pytest.raises(invattn.UsageError, match="stay what it is"):
        block.branch = invattn.Attention(3)


def test_averaged_model():
    block, x = started(*MODULES["gaussian"])
    averaged = torch.optim.swa_utils.AveragedModel(block)
    averaged.update_parameters(block)
    assert torch.equal(averaged(x), block(x))


def test_a_python_branch_is_scaled_and_certified():
    branch = Branch()
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.mul_(4)
    block = invattn.InvertibleResidual(branch)
    x = torch.randn(32, 3)
    before = block(x) - x
    [certificate] = invattn.Guard(block, fraction=1).finish(block, [x], "32 random points")
    largest = invattn.local_constants(block, x).largest
    assert certificate.contraction and block.scale < 1 and largest < 0.9
    torch.testing.assert_close(block(x) - x, before * block.scale)
    assert "scale" in block.state_dict()
    back, report = block.inverse(block(x))
    assert report.usable
    torch.testing.assert_close(back, x, rtol=1e-3, atol=1e-3)


def test_local_constants_are_spectral_norms():
    block, x = started(*MODULES["python"], dtype=torch.float64)
    jacobians = torch.stack([torch.autograd.functional.jacobian(block.branch, one) for one in x])
    expected = torch.linalg.matrix_norm(jacobians, 2)
    torch.testing.assert_close(invattn.local_constants(block, x, tolerance=1e-9).constants, expected, rtol=1e-5, atol=1e-8)
