"""The NPU and the Cortex-M next to it: a model on an Ethos-U55, with CMSIS-NN for the layers that stay on the CPU.

    python examples/npu_and_cmsis_nn.py [FILE.pte]

Here the last layer is kept on the CPU on purpose. Tosaic delegates the rest, and the passes of
`executorch.backends.cortex_m` replace what is left by kernels of CMSIS-NN. `docs/cortex-m.md` explains the flow.
"""

from __future__ import annotations

import sys

import torch
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.operator_support import DontPartitionModule
from torch import Tensor, nn

import tosaic
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(8, 4, 3, stride=2, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(image)))


def mark_quantized(graph: torch.fx.Graph) -> None:
    """Mark operators between a dequantize and a quantize: `cortex_m` replaces only what its quantizer has marked."""
    for node in graph.nodes:
        if node.op == "call_function" and "quantize_per" not in node.name and node.all_input_nodes:
            before = all("dequantize_per" in source.name for source in node.all_input_nodes)
            if before and all("quantize_per" in user.name for user in node.users):
                node.meta.setdefault("custom", {})["_arm_annotation_info"] = {"quantized": True}


def main(path: str) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 32, 32),)
    quantized = tosaic.quantize(torch.export.export(Net().eval(), inputs), [inputs])
    checks = [DontPartitionModule(instance_name="head")]
    edge = to_edge_transform_and_lower(
        torch.export.export(quantized, inputs),
        partitioner=[EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"), additional_checks=checks)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    mark_quantized(edge.exported_program().graph)
    # Private in ExecuTorch 1.4; its own examples use it, too.
    edge._edge_programs["forward"] = CortexMPassManager(edge.exported_program()).transform()
    program = edge.to_executorch()
    program.save(path)
    tosaic.write_sidecar(path)
    (plan,) = program.executorch_program.execution_plan
    print(f"on the NPU: {len(plan.delegates)} delegate")
    print("on the Cortex-M:", ", ".join(operator.name for operator in plan.operators))
    print(f"wrote {path}; `tosaic verify {path}` checks the delegate")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "npu_and_cmsis_nn.pte")
