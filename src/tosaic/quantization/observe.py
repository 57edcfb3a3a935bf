"""Inserts the observers of an annotated graph.

`prepare_pt2e` inserts the same ones, but looks at all parameters and all names of the module again for each of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.nn import Parameter
from torchao.quantization import pt2e
from torchao.quantization.pt2e import quantizer as specs
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from tosaic.core.errors import Invalid
from tosaic.fx.source import find_reachable
from tosaic.fx.torch_compat import FakeTensor, LazyGraphModule
from tosaic.quantization.convert import has_fixed_range, has_inner_graphs
from tosaic.quantization.prepare import ANNOTATION_KEY, attribute, mutates
from tosaic.quantization.quantizer import TosaQuantizer

#: what is observed: the result of a node, or what a node reads of another one
Place: TypeAlias = "Node | tuple[Node, Node]"
#: how it is quantized
Spec: TypeAlias = specs.QuantizationSpecBase
#: tensors of equal type in these respects can have one observer
_TYPE = ("dtype", "is_dynamic", "quant_min", "quant_max", "qscheme", "ch_axis", "scale", "zero_point")


def observe(module: GraphModule, quantizer: TosaQuantizer) -> GraphModule:
    """Annotate a module and return it with its observers, ready for calibration; the module is used up."""
    module = quantizer.transform_for_annotation(module)
    quantizer.annotate(module)
    quantizer.validate(module)
    observers = _make_observers(module)
    if has_inner_graphs(module) or not all(map(has_fixed_range, observers.values())):
        return prepare_pt2e(module, _Annotated())
    _insert_observers(module, observers)
    observed = LazyGraphModule(module, module.graph)
    observed.meta.update(module.meta)
    return observed


class _Annotated(specs.Quantizer):
    """Leaves an annotated module as it is."""

    def annotate(self, model: GraphModule) -> GraphModule:
        return model

    def validate(self, model: GraphModule) -> None: ...


def _insert_observers(module: GraphModule, observers: dict[Place, pt2e.ObserverOrFakeQuantize]) -> None:
    """Insert the observers that the annotations of a graph ask for."""
    insertion = _Insertion(module, observers)
    for node in list(module.graph.nodes):
        if ANNOTATION_KEY in node.meta:
            insertion.observe_inputs(node)
            if node in observers and isinstance(node.meta.get("val"), FakeTensor):
                insertion.observe_result(node)


class _Insertion:
    """A module while observers are inserted."""

    def __init__(self, module: GraphModule, observers: dict[Place, pt2e.ObserverOrFakeQuantize]) -> None:
        self.module, self.observers = module, observers
        #: the calls of observers, with what they observe
        self.calls: dict[Node, Node] = {}
        self.count = 0

    def observe_inputs(self, node: Node) -> None:
        """Let a node read its inputs through their observers."""
        node.args = map_arg(node.args, lambda read: self._observe_input(node, read))

    def _observe_input(self, node: Node, read: Node) -> Node:
        producer = read
        while producer in self.calls:
            producer = self.calls[producer]
        observer = self.observers.get((producer, node))
        if observer is None or observer is self.observers.get(producer) or self._is_overwritten(node, producer):
            return read
        known = (u for u in read.users if u in self.calls and self.module.get_submodule(str(u.target)) is observer)
        return next(known, None) or self._insert(read, observer)

    def _is_overwritten(self, node: Node, producer: Node) -> bool:
        """Tell whether a call writes to a buffer: what is observed would be a copy of it."""
        if node.op != "call_function" or not mutates(node) or node.args[0] is not producer:
            return False
        before = find_reachable([producer], lambda n: n.all_input_nodes)
        return any(_is_buffer(self.module, n) for n in before) and not any(n.op == "placeholder" for n in before)

    def observe_result(self, node: Node) -> None:
        """Let all readers of a node read it through its observer."""
        readers = list(node.users)
        call = self._insert(node, self.observers[node])
        if "from_node" in node.meta:
            call.meta["from_node"] = node.meta["from_node"]
        for reader in readers:
            reader.replace_input_with(node, call)

    def _insert(self, node: Node, observer: pt2e.ObserverOrFakeQuantize) -> Node:
        name = f"activation_post_process_{self.count}"
        self.count += 1
        self.module.add_module(name, observer)
        with self.module.graph.inserting_after(node):
            call = self.module.graph.call_module(name, (node,))
        self.calls[call] = node
        return call


def _is_buffer(module: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and not isinstance(attribute(module, node), Parameter)


def _make_observers(module: GraphModule) -> dict[Place, pt2e.ObserverOrFakeQuantize]:
    """Make the observers of all places; places of one group share an observer."""
    asked: dict[Place, Spec] = {}
    for node in module.graph.nodes:
        annotation = node.meta.get(ANNOTATION_KEY)
        if annotation is not None:
            asked |= {(producer, node): spec for producer, spec in annotation.input_qspec_map.items()}
            if annotation.output_qspec is not None:
                asked[node] = annotation.output_qspec
    groups = _Groups(asked)
    for place, spec in asked.items():
        if not isinstance(place, Node):
            groups.join_tensor(place, spec)
        groups.join_shared(place, spec)
    made: dict[Place, pt2e.ObserverOrFakeQuantize] = {}
    observers: dict[Place, pt2e.ObserverOrFakeQuantize] = {}
    for place, spec in asked.items():
        root = groups.find(place)
        if root not in observers:
            observers[root] = _make_observer(groups.resolve(spec), made)
        made[place] = observers[root]
    return made


class _Groups:
    """Groups of places that share an observer, as trees: each place leads to its parent, a root to itself."""

    def __init__(self, asked: dict[Place, Spec]) -> None:
        self.asked = asked
        self.parents: dict[Place, Place] = {place: place for place in asked}

    def find(self, place: Place) -> Place:
        """Find the root of a place's group."""
        root = place
        while self.parents[root] != root:
            root = self.parents[root]
        while self.parents[place] != root:
            self.parents[place], place = root, self.parents[place]
        return root

    def join_tensor(self, place: tuple[Node, Node], spec: Spec) -> None:
        """Join what a node reads with the other places of the same tensor, if they are of one type."""
        producer, node = place
        if not node.meta[ANNOTATION_KEY].allow_implicit_sharing:
            return
        own = self.resolve(spec)
        # The result comes last: the groups of its readers are complete then.
        for other in (*((producer, reader) for reader in producer.users if reader is not node), producer):
            if other in self.asked and _has_same_type(self.resolve(self.asked[other]), own):
                self._join(other, place)

    def join_shared(self, place: Place, spec: Spec) -> None:
        """Join a place with the one that its spec names."""
        if isinstance(spec, specs.SharedQuantizationSpec):
            self._join(spec.edge_or_node, place)

    def _join(self, parent: Place, child: Place) -> None:
        above, below = self.find(parent), self.find(child)
        named = self.asked[above]
        # A root has a spec of its own if any place of the group has one; else it names a place of another group.
        if isinstance(named, specs.SharedQuantizationSpec) and (
            not isinstance(self.asked[below], specs.SharedQuantizationSpec) or self.find(named.edge_or_node) == below
        ):
            above, below = below, above
        self.parents[below] = above

    def resolve(self, spec: Spec) -> Spec:
        """Return the spec that a shared one leads to."""
        passed: set[Place] = set()
        while isinstance(spec, specs.SharedQuantizationSpec):
            root = self.find(spec.edge_or_node)
            if root in passed:
                raise Invalid(
                    f"the annotations of `{root if isinstance(root, Node) else root[1]}` name only each other",
                    fix="give one of the places that share a range a QuantizationSpec of its own",
                )
            passed.add(root)
            spec = self.asked[root]
        return spec


def _has_same_type(one: Spec, other: Spec) -> bool:
    missing = object()
    return all(getattr(one, name, missing) == getattr(other, name, missing) for name in _TYPE)


def _make_observer(spec: Spec, made: dict[Place, pt2e.ObserverOrFakeQuantize]) -> pt2e.ObserverOrFakeQuantize:
    fields = dict(vars(spec))
    make: Any = fields.pop("observer_or_fake_quant_ctr", None)
    if isinstance(spec, specs.DerivedQuantizationSpec):
        del fields["is_dynamic"]
        sources = [made[place] for place in fields.pop("derived_from")]
        return pt2e.DerivedObserverOrFakeQuantize(obs_or_fqs=sources, **fields)
    if isinstance(spec, specs.FixedQParamsQuantizationSpec):
        return pt2e.FixedQParamsObserver(**fields)
    kind: Any = make.p.func if hasattr(make, "p") else make  # with_args wraps it
    if "PerChannel" not in kind.__name__:
        del fields["ch_axis"]
    return make(**fields)
