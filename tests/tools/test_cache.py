"""The compile cache: bounds, order of eviction, threads, and what its key holds."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tosaic.core.targets import find
from tosaic.tools import vela
from tosaic.tools.cache import CompileCache, make_key
from tosaic.tools.vela import Compiled, VelaOptions
from tosaic.tools.vela_options import read_ini

U55 = vela.default_options(find("ethos-u55-128"))


def test_key_depends_on_every_part_and_its_borders() -> None:
    keys = [make_key(parts) for parts in ([], [""], ["ab"], ["a", "b"], ["b", "a"], [b"a", "bc"], ["ab", "c"])]
    assert len(set(keys)) == len(keys)
    assert make_key(["ä"]) == make_key(["ä".encode()])


def test_least_recently_used_entry_goes_first() -> None:
    cache = CompileCache[str](len, max_entries=2)
    cache.put("a", "1")
    cache.put("b", "2")
    assert cache.get("a") == "1"
    cache.put("c", "3")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("1", None, "3")
    assert len(cache) == 2


def test_bytes_are_bounded() -> None:
    cache = CompileCache[bytes](len, max_bytes=10)
    cache.put("a", bytes(6))
    cache.put("b", bytes(6))
    assert cache.get("a") is None
    assert cache.bytes_used == 6
    cache.put("b", bytes(3))
    assert cache.bytes_used == 3
    cache.put("huge", bytes(11))
    assert cache.get("huge") is None
    assert cache.get("b") == bytes(3)


def test_result_that_no_longer_fits_replaces_nothing_but_its_own_entry() -> None:
    cache = CompileCache[bytes](len, max_bytes=10)
    cache.put("a", bytes(6))
    cache.put("a", bytes(11))
    assert cache.get("a") is None
    assert cache.bytes_used == 0


def test_clear_forgets_everything() -> None:
    cache = CompileCache[str](len)
    cache.put("a", "1")
    cache.clear()
    assert (len(cache), cache.bytes_used, cache.get("a")) == (0, 0, None)


def test_many_threads_keep_the_books_straight() -> None:
    cache = CompileCache[bytes](len, max_entries=50, max_bytes=2000)

    def work(seed: int) -> None:
        for step in range(2000):
            key = str((seed * 31 + step * 7) % 120)
            found = cache.get(key)
            assert found is None or len(found) == int(key)
            cache.put(key, bytes(int(key)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [found for key in range(120) if (found := cache.get(str(key))) is not None]
    assert len(kept) == len(cache) <= 50
    assert sum(map(len, kept)) == cache.bytes_used <= 2000


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[VelaOptions]:
    """Every real compile that is made."""
    made: list[VelaOptions] = []
    real = vela.compile

    def count(tosa: bytes, options: VelaOptions, *, timeout: float | None = None) -> Compiled:
        made.append(options)
        return real(tosa, options, timeout=timeout)

    monkeypatch.setattr(vela, "compile", count)
    return made


def test_same_bytes_and_options_compile_once(conv: bytes, compiles: list[VelaOptions]) -> None:
    cache = CompileCache[Compiled](lambda compiled: 1)
    first = vela.compile_cached(conv, U55, cache=cache)
    assert vela.compile_cached(conv, replace(U55), cache=cache) is first
    assert len(compiles) == 1


def test_anything_that_matters_compiles_again(conv: bytes, compiles: list[VelaOptions], tmp_path: Path) -> None:
    cache = CompileCache[Compiled](lambda compiled: 1)
    ini = tmp_path / "board.ini"
    ini.write_bytes(read_ini("Arm/vela.ini"))
    variants = [
        U55,
        replace(U55, accelerator="ethos-u55-256"),
        replace(U55, system_config="Ethos_U55_Deep_Embedded"),
        replace(U55, memory_mode="Sram_Only"),
        replace(U55, extra_flags=("--optimise=Size",)),
    ]
    for options in variants:
        vela.compile_cached(conv, options, cache=cache)
    assert compiles == variants
    # The same ini under another name is the same; an edited one is not.
    mine = replace(U55, config_ini=str(ini))
    vela.compile_cached(conv, mine, cache=cache)
    assert len(compiles) == len(variants)
    ini.write_text(ini.read_text().replace("core_clock=500e6", "core_clock=400e6"))
    assert vela.compile_cached(conv, mine, cache=cache).summary["core_clock"] == 400e6
    assert len(compiles) == len(variants) + 1


def test_default_cache_is_used(conv: bytes) -> None:
    first = vela.compile_cached(conv, U55)
    assert vela.compile_cached(conv, U55) is first
    assert vela.CACHE.bytes_used > len(first.cmd_data) + len(first.weight_data)
