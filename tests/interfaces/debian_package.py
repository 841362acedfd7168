# SPDX-License-Identifier: Apache-2.0
"""Packs a build folder as a .deb, looks inside, installs it below a folder of its own, removes it, and asks lintian."""

import argparse
import pathlib
import shutil
import subprocess
import tempfile

FILES = [
    "bin/heed",
    "include/heed/attention.hpp",
    "include/heed/c.h",
    "share/man/man1/heed.1.gz",
    "share/man/man1/heed-bench.1.gz",
    "share/bash-completion/completions/heed",
    "share/zsh/vendor-completions/_heed",
    "share/fish/vendor_completions.d/heed.fish",
    "share/doc/heed/copyright",
    "share/doc/heed/changelog.gz",
]


def run(*command, **options):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def pack(cpack, build, folder):
    run(cpack, "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", folder, cwd=build)
    (package,) = folder.glob("*.deb")
    return package


def files_below(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()}


def check_contents(package, folder, version):
    run("dpkg-deb", "-x", package, folder)
    missing = [name for name in FILES if not (folder / "usr" / name).is_file()]
    assert not missing, f"not in the package: {missing}"
    assert list((folder / "usr/lib").rglob("libheed.a")) or list((folder / "usr/lib").rglob("libheed.so"))
    assert list((folder / "usr/lib").rglob("heedConfig.cmake")) and list((folder / "usr/lib").rglob("heed.pc"))
    assert run(folder / "usr/bin/heed", "--version") == f"heed {version}\n"
    assert "libc6" in run("dpkg-deb", "-f", package, "Depends")


def check_installs_and_removes(package, root):
    database = root / "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (database / name).mkdir(parents=True)
    (database / "status").touch()
    dpkg = ["dpkg", f"--root={root}", "--log=/dev/null", "--force-not-root", "--force-depends", "--force-script-chrootless"]
    run(*dpkg, "--install", package)
    assert (root / "usr/bin/heed").is_file()
    run(*dpkg, "--purge", "heed")
    remaining = {path for path in files_below(root) if path.parts[0] != "var"}
    assert not remaining, f"remain after removal: {sorted(remaining)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpack", required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = {part: pathlib.Path(name, part) for part in ("packed", "contents", "root")}
        for folder in folders.values():
            folder.mkdir()
        package = pack(arguments.cpack, arguments.build, folders["packed"])
        check_contents(package, folders["contents"], arguments.version)
        check_installs_and_removes(package, folders["root"])
        print(f"{package.name}: {package.stat().st_size} bytes")
        if shutil.which("lintian"):
            print(run("lintian", "--allow-root", "--fail-on", "error", package))
        else:
            print("there is no lintian, so its rules are not looked at")


main()
