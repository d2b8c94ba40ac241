"""Image models and losses: kornia and monai."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Training, World, training

pytestmark = pytest.mark.world
kornia_world, monai_world = World("kornia"), World("monai")


class _Homography(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.eye(3)[None] + 0.01 * torch.randn(1, 3, 3))


@kornia_world.case("image registration by a homography")
def _register() -> Training:
    kornia = pytest.importorskip("kornia")
    model = _Homography()
    source, target = torch.rand(1, 1, 16, 16), torch.rand(1, 1, 16, 16)

    def loss() -> torch.Tensor:
        warped = kornia.geometry.transform.warp_perspective(source, model.matrix, (16, 16))
        return F.l1_loss(warped, target) + kornia.losses.ssim_loss(warped, target, 5)

    return training(model, loss)


@kornia_world.case("augmentations before a classifier")
def _augment() -> Training:
    kornia = pytest.importorskip("kornia")
    aug = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomAffine(30.0, p=1.0),
        kornia.augmentation.RandomHorizontalFlip(),
        kornia.augmentation.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=1.0),
        kornia.augmentation.RandomErasing(p=1.0),
        kornia.augmentation.RandomGaussianBlur((3, 3), (0.1, 2.0), p=1.0),
    )
    stem = torch.nn.Conv2d(3, 3, 1)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(4),
    )
    x, y = torch.rand(4, 3, 16, 16), torch.randint(4, (4,))
    net(x)
    model = torch.nn.ModuleList([stem, net])
    return training(model, lambda: F.cross_entropy(net(aug(stem(x).sigmoid())), y))


@kornia_world.case("filters, colours and edges, differentiated")
def _filters() -> Training:
    kornia = pytest.importorskip("kornia")
    model = torch.nn.Conv2d(3, 3, 3, padding=1)
    x = torch.rand(2, 3, 16, 16)

    def loss() -> torch.Tensor:
        y = model(x).sigmoid()
        lab = kornia.color.rgb_to_lab(y)
        edges = kornia.filters.sobel(kornia.filters.bilateral_blur(y, 3, 0.1, (1.5, 1.5)))
        magnitude, _ = kornia.filters.canny(y, hysteresis=False)
        corners = kornia.feature.harris_response(y)
        return (
            lab.mean() / 100
            + edges.mean()
            + magnitude.mean()
            + corners.mean()
            + kornia.losses.total_variation(y).mean() / 100
        )

    return training(model, loss)


@kornia_world.case("VisionTransformer, focal loss")
def _vit() -> Training:
    kornia = pytest.importorskip("kornia")
    from kornia.models.vit import VisionTransformer

    model = VisionTransformer(image_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    head = torch.nn.Linear(16, 3)
    both = torch.nn.ModuleList([model, head])
    x, y = torch.rand(2, 3, 16, 16), torch.randint(3, (2,))
    return training(
        both, lambda: kornia.losses.focal_loss(head(model(x)[:, 0]), y, alpha=0.5, reduction="mean")
    )


def _segments(make: Callable[[Any], torch.nn.Module], dims: int, size: int) -> Callable[[], Training]:
    def case() -> Training:
        pytest.importorskip("monai")
        from monai.losses import DiceCELoss
        from monai.networks import nets

        model = make(nets)
        x = torch.randn(1, 1, *[size] * dims)
        y = torch.randint(2, (1, 1, *[size] * dims))
        judge = DiceCELoss(to_onehot_y=True, softmax=True)

        def loss() -> torch.Tensor:
            out = model(x)
            return judge(out[0] if isinstance(out, (list, tuple)) else out, y)

        return training(model, loss)

    return case


monai_world.add(
    "UNet 2d, residual units",
    _segments(
        lambda n: n.UNet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1, dropout=0.1), 2, 16
    ),
)
monai_world.add(
    "SegResNet 3d",
    _segments(
        lambda n: n.SegResNet(
            3,
            4,
            in_channels=1,
            out_channels=2,
            blocks_down=(1, 1),
            blocks_up=(1,),
            norm=("GROUP", {"num_groups": 2}),
        ),
        3,
        8,
    ),
)
monai_world.add(
    "DynUNet 2d",
    _segments(lambda n: n.DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16]), 2, 16),
)
monai_world.add("AttentionUnet 2d", _segments(lambda n: n.AttentionUnet(2, 1, 2, (4, 8), (2,)), 2, 16))
monai_world.add(
    "BasicUNetPlusPlus 2d",
    _segments(lambda n: n.BasicUNetPlusPlus(2, 1, 2, features=(4, 4, 8, 8, 8, 4)), 2, 32),
)
monai_world.add("VNet 2d", _segments(lambda n: n.VNet(2, 1, 2), 2, 32))
monai_world.add(
    "UNETR 2d",
    _segments(
        lambda n: n.UNETR(1, 2, 32, feature_size=4, hidden_size=12, mlp_dim=16, num_heads=2, spatial_dims=2),
        2,
        32,
    ),
)
monai_world.add(
    "SwinUNETR 2d",
    _segments(
        lambda n: n.SwinUNETR(
            in_channels=1,
            out_channels=2,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 1, 1),
            feature_size=12,
            spatial_dims=2,
        ),
        2,
        64,
    ),
)


@monai_world.case("DenseNet and sliding-window inference")
def _dense() -> Training:
    monai = pytest.importorskip("monai")
    model = monai.networks.nets.DenseNet(
        2, 1, 2, init_features=4, growth_rate=4, block_config=(2, 2), bn_size=2
    )
    segment = monai.networks.nets.UNet(2, 1, 1, channels=(4, 8), strides=(2,))
    both = torch.nn.ModuleList([model, segment])
    x, y = torch.randn(2, 1, 32, 32), torch.randint(2, (2,))

    def loss() -> torch.Tensor:
        mask = monai.inferers.sliding_window_inference(x, 16, 2, segment, overlap=0.25)
        return F.cross_entropy(model(x * mask), y)

    return training(both, loss)


@pytest.mark.parametrize("case", kornia_world.cases, ids=str)
def test_kornia(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", monai_world.cases, ids=str)
def test_monai(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
