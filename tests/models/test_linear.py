"""The linear layer for few columns: the products of `nn.Linear`, in the other order."""

import pytest
import torch
from torch import nn

from fnroll.models.linear import FewColumnsLinear
from fnroll.models.twin import Twin


@pytest.mark.parametrize("shape", [(1,), (3, 1), (16, 1), (4, 8), (33, 1), (5, 40)])
@pytest.mark.parametrize("size", [(48, 80), (80, 48)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_multiplies_as_the_library_does(shape, size, bias, dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(*size, bias=bias).to(dtype)
        inputs = torch.randn(*shape, size[0], dtype=dtype)
    twin = Twin(layer).module
    assert type(twin) is FewColumnsLinear and twin.weight is layer.weight
    found, exact = twin(inputs), layer.double()(inputs.double())
    assert found.dtype == dtype and found.is_contiguous()
    # One rounding of the result in bfloat16.
    tolerance = 2**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_layer_of_another_class_keeps_its_own_products():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    assert type(Twin(Doubled(2, 2)).module) is Doubled
