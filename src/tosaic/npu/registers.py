"""The commands of an Ethos-U: opcodes, names and bit fields, for U55 and U65 (one instruction set) and for U85."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType


class Family(IntEnum):
    """The three generations. U65 runs the commands of U55, with wider addresses and a second core."""

    U55 = 0
    U65 = 1
    U85 = 2

    @property
    def has_u85_units(self) -> bool:
        """Whether it has the commands, the units and the number formats of a U85, not those of a U55."""
        return self is Family.U85


@dataclass(frozen=True, slots=True)
class Field:
    """A bit field of a command: positions 0 to 15 are its parameter, 16 to 47 its payload word.

    `names` holds the name of each value, empty for an undefined value; a plain number has no names. A listing
    prefixes them with the name of the enumeration, `group`.
    """

    name: str
    low: int
    width: int
    names: tuple[str, ...] = ()
    group: str = ""
    signed: bool = False
    #: an address: 32 bits of payload below the low 8 bits of the parameter
    address: bool = False

    @property
    def mask(self) -> int:
        return 0xFFFF_FFFF_00FF if self.address else ((1 << self.width) - 1) << self.low

    def get(self, raw: int) -> int:
        """Return the field's value in a command whose parameter and payload are `raw`."""
        if self.address:
            return (raw >> 16) | (raw & 0xFF) << 32
        value = (raw >> self.low) & ((1 << self.width) - 1)
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value


@dataclass(frozen=True, slots=True)
class Command:
    """One kind of command."""

    name: str
    opcode: int
    has_payload: bool
    fields: tuple[Field, ...]
    #: the bits that are defined
    mask: int


def _split_names(names: str) -> tuple[str, ...]:
    """Split value names: `-` is an undefined value, `12*-` are twelve of them."""
    found: list[str] = []
    for word in names.split():
        count, star, name = word.rpartition("*")
        found += [name if name != "-" else ""] * (int(count) if star else 1)
    return tuple(found)


_SHARED_ENUMS: Mapping[str, str] = MappingProxyType(
    {
        "activation_format": "NHWC NHCWB16",
        "activation_precision": "B8 B16 B32 B64",
        "activation_type": "UNSIGNED SIGNED",
        "dma_region_mode": "EXTERNAL INTERNAL",
        "dma_stride_mode": "D1 D2 D3",
        "ifm_upscale_mode": "NONE NEAREST ZEROS",
        "kernel_decomposition": "D8X8 D4X4",
        "kernel_dilation": "NONE X2",
        "ofm_scale_mode": "PER_CHANNEL GLOBAL",
        "weight_order": "DEPTH_FIRST PART_KERNEL_FIRST",
    }
)
_U55_ENUMS: Mapping[str, str] = MappingProxyType(
    {
        "acc_format": "I32 I40 F16",
        "activation_clip_range": "OFM_PRECISION - FORCE_UINT8 FORCE_INT8 - FORCE_INT16",
        "activation_function": "RELU 2*- TANH SIGMOID 11*- "
        "TABLE_0 TABLE_1 TABLE_2 TABLE_3 TABLE_4 TABLE_5 TABLE_6 TABLE_7",
        "broadcast_mode": "DISABLE ENABLE",
        "elementwise_mode": "MUL ADD SUB MIN MAX LRELU ABS CLZ SHR SHL",
        "ifm2_operand_order": "ORDER_B ORDER_A",
        "ifm_scale_mode": "OPA_OPB_16 OPA_32 OPB_32",
        "parallel_mode": "SINGLE_CORE DUAL_CORE_DEPTH",
        "pooling_mode": "MAX AVERAGE REDUCE_SUM",
        "round_mode": "DBL TRUNCATE NATURAL",
    }
)
_U85_ENUMS: Mapping[str, str] = MappingProxyType(
    {
        "acc_format": "I32 I48",
        "acc_input": "RESET KEEP IFM2",
        "acc_output": "ENABLE DISABLE",
        "activation_clip_range": "B16 NONE",
        "activation_function": "LUT_NONE LUT_U8_U8 2*- LUT_S8_S8 LUT_S8_S16 - LUT_S8_S32 LUT_S16_S16 LUT_S16_S32 "
        "LUT_TANH LUT_SIGMOID",
        "activation_reverse": "NONE H W C",
        "activation_storage": "TILE2X2 TILE3X1 CHAINED NONE",
        "activation_transpose": "HWC WHC HCW WCH 2*- CHW CWH",
        "branch_cond": "ALWAYS RF_TRUE",
        "broadcast_mode": "NONE H W HW C CH CW CWH SCALAR",
        "dma_idx_mode": "DISABLED ENABLED",
        "elementwise_mode": "MUL ADD SUB MIN MAX LRELU ABS CLZ SHR SHL LSR DIV 4*- CMP_EQ CMP_NE CMP_GE CMP_GT 13*- "
        "AND OR XOR NOT 5*- AND_NOT",
        "microblock": "U1X1 U1X2 U1X4 U2X2 U2X4 U4X4",
        "pooling_mode": "MAX AVERAGE REDUCE_SUM SUM NONE MIN ARGMAX_X ARGMAX_Y",
        "resize_mode": "BILINEAR REPLICATE NEAREST",
        "round_mode_ifm": "DOUBLE_SYMMETRIC NATURAL",
        "round_mode_ofm": "DOUBLE_SYMMETRIC NATURAL DOUBLE_ASYMMETRIC SYMMETRIC TRUNCATE_TO_ZERO TRUNCATE_TO_LOWER",
        "weight_format": "SWD FWD",
        "weight_sparsity": "NONE SPARSE_2_4",
    }
)

# A line is opcode, name, fields. A field is name:low+width, then =enum for named values, `s` for a signed number;
# `addr` alone is an address. Commands from 0x4000 on have a payload word.
_SHARED = """
0 OP_STOP mask:0+16
1 OP_IRQ mask:0+16
3 OP_DEPTHWISE
5 OP_POOL pooling_mode:0+3=pooling_mode
6 OP_ELEMENTWISE elementwise_mode:0+6=elementwise_mode
16 OP_DMA_START
19 OP_PMU_MASK enable:0+1
256 SET_IFM_PAD_TOP pad:0+7
257 SET_IFM_PAD_LEFT pad:0+7
258 SET_IFM_PAD_RIGHT pad:0+8
259 SET_IFM_PAD_BOTTOM pad:0+8
260 SET_IFM_DEPTH_M1 depth_m1:0+16
263 SET_IFM_UPSCALE mode:0+2=ifm_upscale_mode
265 SET_IFM_ZERO_POINT zero_point:0+16
266 SET_IFM_WIDTH0_M1 width_m1:0+16
267 SET_IFM_HEIGHT0_M1 height_m1:0+16
268 SET_IFM_HEIGHT1_M1 height_m1:0+16
271 SET_IFM_REGION region:0+3
273 SET_OFM_WIDTH_M1 width_m1:0+16
274 SET_OFM_HEIGHT_M1 height_m1:0+16
275 SET_OFM_DEPTH_M1 depth_m1:0+16
280 SET_OFM_ZERO_POINT zero_point:0+16
282 SET_OFM_WIDTH0_M1 width_m1:0+16
283 SET_OFM_HEIGHT0_M1 height_m1:0+16
284 SET_OFM_HEIGHT1_M1 height_m1:0+16
287 SET_OFM_REGION region:0+3
288 SET_KERNEL_WIDTH_M1 width_m1:0+16
289 SET_KERNEL_HEIGHT_M1 height_m1:0+16
290 SET_KERNEL_STRIDE stride_x_lsb:0+1 stride_y_lsb:1+1 weight_order:2+1=weight_order \
 dilation_x:3+1=kernel_dilation dilation_y:4+1=kernel_dilation decomposition:5+1=kernel_decomposition \
 stride_x_msb:6+1 stride_y_msb:9+1
294 SET_ACTIVATION_MIN clip_boundary:0+16
295 SET_ACTIVATION_MAX clip_boundary:0+16
296 SET_WEIGHT_REGION region:0+3
297 SET_SCALE_REGION region:0+3
306 SET_DMA0_SIZE0 size:0+16
307 SET_DMA0_SIZE1 size:0+16
393 SET_IFM2_ZERO_POINT zero_point:0+16
394 SET_IFM2_WIDTH0_M1 width_m1:0+16
395 SET_IFM2_HEIGHT0_M1 height_m1:0+16
396 SET_IFM2_HEIGHT1_M1 height_m1:0+16
399 SET_IFM2_REGION region:0+3
0x4000 SET_IFM_BASE0 addr
0x4001 SET_IFM_BASE1 addr
0x4002 SET_IFM_BASE2 addr
0x4003 SET_IFM_BASE3 addr
0x4004 SET_IFM_STRIDE_X addr
0x4005 SET_IFM_STRIDE_Y addr
0x4006 SET_IFM_STRIDE_C addr
0x4010 SET_OFM_BASE0 addr
0x4011 SET_OFM_BASE1 addr
0x4012 SET_OFM_BASE2 addr
0x4013 SET_OFM_BASE3 addr
0x4014 SET_OFM_STRIDE_X addr
0x4015 SET_OFM_STRIDE_Y addr
0x4016 SET_OFM_STRIDE_C addr
0x4020 SET_WEIGHT_BASE addr
0x4021 SET_WEIGHT_LENGTH length:16+32
0x4022 SET_SCALE_BASE addr
0x4023 SET_SCALE_LENGTH length:16+20
0x4030 SET_DMA0_SRC addr
0x4031 SET_DMA0_DST addr
0x4032 SET_DMA0_LEN addr
0x4080 SET_IFM2_BASE0 addr
0x4081 SET_IFM2_BASE1 addr
0x4082 SET_IFM2_BASE2 addr
0x4083 SET_IFM2_BASE3 addr
0x4084 SET_IFM2_STRIDE_X addr
0x4085 SET_IFM2_STRIDE_Y addr
0x4086 SET_IFM2_STRIDE_C addr
0x4090 SET_WEIGHT1_BASE addr
0x4091 SET_WEIGHT1_LENGTH length:16+32
"""
_U55_ONLY = """
2 OP_CONV
17 OP_DMA_WAIT k:0+1
18 OP_KERNEL_WAIT n:0+2
261 SET_IFM_PRECISION activation_type:0+1=activation_type activation_precision:2+2=activation_precision \
 activation_format:6+2=activation_format scale_mode:8+2=ifm_scale_mode round_mode:14+2=round_mode
269 SET_IFM_IB_END ib_end:0+6
276 SET_OFM_PRECISION activation_type:0+1=activation_type activation_precision:1+2=activation_precision \
 activation_format:6+2=activation_format scale_mode:8+1=ofm_scale_mode round_mode:14+2=round_mode
277 SET_OFM_BLK_WIDTH_M1 width_m1:0+6
278 SET_OFM_BLK_HEIGHT_M1 height_m1:0+5
279 SET_OFM_BLK_DEPTH_M1 depth_m1:0+7
291 SET_PARALLEL_MODE parallel_mode:0+1=parallel_mode
292 SET_ACC_FORMAT acc_format:0+2=acc_format
293 SET_ACTIVATION activation_function:0+5=activation_function activation_clip_range:12+3=activation_clip_range
301 SET_AB_START ab_start:0+6
303 SET_BLOCKDEP blockdep:0+2
304 SET_DMA0_SRC_REGION region:0+3 region_mode:8+1=dma_region_mode stride_mode:9+2=dma_stride_mode
305 SET_DMA0_DST_REGION region:0+3 region_mode:8+1=dma_region_mode stride_mode:9+2=dma_stride_mode
384 SET_IFM2_BROADCAST broadcast_h:0+1=broadcast_mode broadcast_w:1+1=broadcast_mode broadcast_c:2+1=broadcast_mode \
 operand_order:6+1=ifm2_operand_order broadcast_constant:7+1=broadcast_mode
385 SET_IFM2_SCALAR scalar:0+16
389 SET_IFM2_PRECISION activation_type:0+1=activation_type activation_precision:2+2=activation_precision \
 activation_format:6+2=activation_format
397 SET_IFM2_IB_START ib_start:0+6
0x4024 SET_OFM_SCALE shift:0+6 scale:16+32
0x4025 SET_OPA_SCALE shift:0+6 scale:16+32
0x4026 SET_OPB_SCALE scale:16+16
0x4033 SET_DMA0_SKIP0 addr
0x4034 SET_DMA0_SKIP1 addr
0x4092 SET_SCALE1_BASE addr
0x4093 SET_SCALE1_LENGTH length:16+20
"""
_U85_ONLY = """
2 OP_CONV weights_ifm2:0+1
7 OP_RESIZE resize_mode:0+2=resize_mode
17 OP_DMA_WAIT k:0+2
18 OP_KERNEL_WAIT n:0+1
261 SET_IFM_PRECISION activation_type:0+1=activation_type activation_precision:2+2=activation_precision \
 activation_format:6+2=activation_format activation_storage:14+2=activation_storage
264 SET_IFM_BROADCAST broadcast_mode:0+4=broadcast_mode
276 SET_OFM_PRECISION activation_type:0+1=activation_type activation_precision:1+2=activation_precision \
 activation_format:6+2=activation_format scale_mode:8+1=ofm_scale_mode activation_reverse:9+2=activation_reverse \
 activation_transpose:11+3=activation_transpose activation_storage:14+2=activation_storage
277 SET_OFM_BLK_WIDTH_M1 width_m1:0+7
278 SET_OFM_BLK_HEIGHT_M1 height_m1:0+7
279 SET_OFM_BLK_DEPTH_M1 depth_m1:0+10
292 SET_ACC_FORMAT acc_format:0+2=acc_format acc_input:4+2=acc_input acc_output:6+1=acc_output \
 microblock:8+3=microblock
293 SET_ACTIVATION activation_function:0+5=activation_function table:5+3 \
 activation_clip_range:12+1=activation_clip_range
298 SET_RESIZE_X_SCALE_N_M1 resize_x_scale_n_m1:0+11
299 SET_RESIZE_Y_SCALE_N_M1 resize_y_scale_n_m1:0+11
300 SET_RESIZE_X_OFFSET resize_x_offset:0+12s
301 SET_RESIZE_Y_OFFSET resize_y_offset:0+12s
302 SET_WEIGHT_FORMAT weight_format:0+1=weight_format weight_sparsity:4+1=weight_sparsity
303 SET_BLOCKDEP blockdep:0+3
304 SET_DMA0_SRC_REGION region:0+3 region_mode:8+1=dma_region_mode stride_mode:9+2=dma_stride_mode \
 idx_mode:11+1=dma_idx_mode
305 SET_DMA0_DST_REGION region:0+3 region_mode:8+1=dma_region_mode idx_mode:11+1=dma_idx_mode
308 SET_DMA0_IDX_REGION region:0+3
384 SET_IFM2_BROADCAST broadcast_mode:0+4=broadcast_mode
389 SET_IFM2_PRECISION activation_type:0+1=activation_type activation_precision:2+2=activation_precision \
 activation_format:6+2=activation_format activation_storage:14+2=activation_storage
0x4024 SET_OFM_SCALE shift:0+6 dbl_rnd:6+5 round_mode:13+3=round_mode_ofm scale:16+31
0x4025 SET_IFM_SCALE shift:0+6 dbl_rnd:6+5 round_mode:13+1=round_mode_ifm scale:16+31
0x4026 SET_IFM2_SCALE shift:0+6 dbl_rnd:6+5 round_mode:13+1=round_mode_ifm scale:16+31
0x4027 SET_OP_SCALAR scalar:16+32s
0x4033 SET_DMA0_SRC_STRIDE0 addr
0x4034 SET_DMA0_SRC_STRIDE1 addr
0x4035 SET_DMA0_DST_STRIDE0 addr
0x4036 SET_DMA0_DST_STRIDE1 addr
0x4037 SET_DMA0_IDX addr
0x4038 SET_DMA0_IDX_MAX idx_max:16+31
0x4039 SET_DMA0_IDX_SKIP1 addr
0x4092 SET_WEIGHT2_BASE addr
0x4093 SET_WEIGHT2_LENGTH length:16+32
0x4094 SET_WEIGHT3_BASE addr
0x4095 SET_WEIGHT3_LENGTH length:16+32
0x4096 SET_RESIZE_X_STEP one_step_int:0+4 blk_step_int:4+11 one_step_mod:16+11 blk_step_mod:32+11
0x4097 SET_RESIZE_Y_STEP one_step_int:0+4 blk_step_int:4+11 one_step_mod:16+11 blk_step_mod:32+11
0x4100 OP_BRANCH branch_cond:0+1=branch_cond branch_target:16+32
"""


def _read_field(text: str, enums: Mapping[str, str]) -> Field:
    if text == "addr":
        return Field("addr", 0, 40, address=True)
    name, _, place = text.partition(":")
    bits, _, enum = place.partition("=")
    low, _, width = bits.removesuffix("s").partition("+")
    names = _split_names(enums[enum]) if enum else ()
    return Field(name, int(low), int(width), names, enum.upper(), signed=bits.endswith("s"))


def _read_table(text: str, enums: Mapping[str, str]) -> Mapping[int, Command]:
    commands: dict[int, Command] = {}
    for line in text.strip().splitlines():
        number, name, *fields = line.split()
        opcode = int(number, 0)
        parts = tuple(_read_field(field, enums) for field in fields)
        commands[opcode] = Command(name, opcode, opcode >= 0x4000, parts, sum(part.mask for part in parts))
    return MappingProxyType(commands)


_U55 = _read_table(_SHARED + _U55_ONLY.lstrip(), {**_SHARED_ENUMS, **_U55_ENUMS})
_U85 = _read_table(_SHARED + _U85_ONLY.lstrip(), {**_SHARED_ENUMS, **_U85_ENUMS})
#: The commands of each family by opcode (the low 16 bits of a command word).
COMMANDS: Mapping[Family, Mapping[int, Command]] = MappingProxyType(
    {family: _U85 if family.has_u85_units else _U55 for family in Family}
)
