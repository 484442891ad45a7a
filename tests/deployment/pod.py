"""A pod on this machine: the containers of a manifest as processes that share only what Kubernetes lets them share.

Every container has its own root directory, read-only where the manifest says so, with this machine's /usr in place of an image. It
has the manifest's command, environment, user, and volumes, and no capability. All containers share one network and, with
shareProcessNamespace, one process namespace. The caller does the kubelet's work: starting in order, probing, stopping.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "examples/kubernetes"
# As the kubelet's probes name it in Host.
ADDRESS = "10.244.1.7"

_ROOT_SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$NEW"
mkdir -p "$NEW"/usr "$NEW"/proc "$NEW"/sys "$NEW"/dev "$NEW"/etc "$NEW"/image "$NEW"/tmp
mount --rbind /usr "$NEW"/usr
for name in bin lib lib64 sbin; do ln -s usr/$name "$NEW"/$name; done
touch "$NEW"/image/afterbay
mount --bind "$BINARY" "$NEW"/image/afterbay
mount --bind /sys "$NEW"/sys
mount -o remount,bind,ro "$NEW"/sys
mount -t proc proc "$NEW"/proc
mount -t tmpfs -o mode=755 dev "$NEW"/dev
for name in null zero urandom; do touch "$NEW"/dev/$name; mount --bind /dev/$name "$NEW"/dev/$name; done
mkdir "$NEW"/dev/shm
while read -r from at option; do
  mkdir -p "$NEW$at"; mount --rbind "$from" "$NEW$at"
  [ "$option" = rw ] || mount -o remount,bind,ro "$NEW$at"
done < "$MOUNTS"
[ "$READ_ONLY" = no ] || mount -o remount,ro "$NEW"
exec chroot "$NEW" setpriv --reuid="$ID_USER" --regid="$ID_GROUP" --groups="$ID_FS" --no-new-privs --inh-caps=-all --bounding-set=-all env -i "$@"
"""


def why_impossible():
    """Why this machine cannot run a pod; None if it can."""
    for tool in ["kubectl", "unshare", "nsenter", "setpriv", "ip", "curl"]:
        if not shutil.which(tool):
            return f"{tool} is not installed"
    done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True)
    return done.stderr.strip() or None


@functools.cache
def rendered(overlay):
    """What `kubectl apply -k` would send: the objects of an overlay."""
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / overlay], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def objects(overlay, kind):
    return [each for each in rendered(overlay) if each["kind"] == kind]


def template(overlay):
    """The pod that an overlay's Deployment or StatefulSet makes."""
    (owner,) = [each for each in rendered(overlay) if each["kind"] in ("Deployment", "StatefulSet")]
    return owner["spec"]["template"]


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


class Container:
    """A running container."""

    def __init__(self, process, log, mark):
        self.process, self.log, self.mark = process, log, mark

    def pid(self):
        """The main process, as this machine numbers it: the child of nsenter."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return int(until("the container's process", lambda: Path(children).read_text().split())[0])

    def stop(self, sent=signal.SIGTERM, seconds=60):
        """Sends a signal to the main process, as the kubelet does, and returns the exit code."""
        os.kill(self.pid(), sent)
        return self.wait(seconds)

    def wait(self, seconds=120):
        """Waits for the main process. Without a process namespace of its own, the container's runtime then kills the others."""
        code = self.process.wait(seconds)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
        return code

    def text(self):
        return self.log.read_text(errors="replace")

    def events(self, name):
        """The events of this name in the log."""
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]


class Pod:
    """The volumes and namespaces of a pod. Leaving the context ends every process in it."""

    def __init__(self, overlay, directory, binary, extra=()):
        self.spec = template(overlay)["spec"]
        self.directory, self.binary, self.extra = Path(directory), binary, extra
        self.maps = {each["metadata"]["name"]: each["data"] for each in objects(overlay, "ConfigMap")}
        self.versions = 0

    def __enter__(self):
        assert self.spec["shareProcessNamespace"], "without it Afterbay does not see the engine's process"
        # The process that holds the namespaces, like Kubernetes' "pause". Its end ends every process in them.
        self.pause = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
        )
        children = f"/proc/{self.pause.pid}/task/{self.pause.pid}/children"
        self.init = int(until("the pod's first process", lambda: Path(children).read_text().split())[0])
        self._inside("ip link set lo up && ip address add " + ADDRESS + "/32 dev lo")
        self.memory = Path("/dev/shm") / f"pod-{self.pause.pid}"
        claims = [] if "journal" in [each["name"] for each in self.spec["volumes"]] else [{"name": "journal"}]
        self.volumes = {each["name"]: self._volume(each) for each in self.spec["volumes"] + claims}
        return self

    def __exit__(self, *_):
        self.pause.kill()
        self.pause.wait()
        shutil.rmtree(self.memory, ignore_errors=True)

    def _inside(self, command):
        namespaces = ["nsenter", f"--target={self.init}", "--net", "--pid"]
        return subprocess.run([*namespaces, "sh", "-c", command], capture_output=True, text=True)

    def _volume(self, volume):
        in_memory = volume.get("emptyDir", {}).get("medium") == "Memory"
        path = (self.memory if in_memory else self.directory / "volumes") / volume["name"]
        path.mkdir(parents=True)
        if "configMap" in volume:
            self._write_map(path, self.maps[volume["configMap"]["name"]])
        else:
            group = self.spec["securityContext"]["fsGroup"]
            os.chown(path, 0, group)
            path.chmod(0o2777)
        return path

    def _write_map(self, path, data):
        """As the kubelet writes a ConfigMap: files behind one link, which a change replaces."""
        self.versions += 1
        version = path / f"..version_{self.versions}"
        version.mkdir()
        for name, text in data.items():
            (version / name).write_text(text)
            if not (path / name).is_symlink():
                (path / name).symlink_to(f"..data/{name}")
        (path / "..data_tmp").symlink_to(version.name)
        (path / "..data_tmp").rename(path / "..data")

    def change_map(self, name, key, change):
        """`kubectl apply` of a changed ConfigMap, and the kubelet's update of the volume."""
        self.maps[name][key] = change(self.maps[name][key])
        (volume,) = [each["name"] for each in self.spec["volumes"] if each.get("configMap", {}).get("name") == name]
        self._write_map(self.volumes[volume], self.maps[name])

    def container(self, name):
        containers = self.spec["initContainers"] + self.spec["containers"]
        return next(each for each in containers if each["name"] == name)

    def start(self, name, command=None, environment=()):
        """Starts a container: with its own command, or with another one in the same place."""
        spec = self.container(name)
        pod, own = self.spec["securityContext"], spec.get("securityContext", {})
        mounts = self.directory / f"{name}.mounts"
        lines = [
            f"{self.volumes[each['name']]} {each['mountPath']} {'ro' if each.get('readOnly') else 'rw'}"
            for each in spec["volumeMounts"]
        ]
        lines += [f"{path} {path} ro" for path in self.extra]
        mounts.write_text("".join(line + "\n" for line in lines))
        new = self.directory / f"{name}.root"
        new.mkdir(exist_ok=True)
        variables = {
            "NEW": str(new),
            "BINARY": str(self.binary),
            "MOUNTS": str(mounts),
            "READ_ONLY": "yes" if own.get("readOnlyRootFilesystem") else "no",
            "ID_USER": str(pod["runAsUser"]),
            "ID_GROUP": str(pod["runAsGroup"]),
            "ID_FS": str(pod["fsGroup"]),
        }
        mark = f"CONTAINER={uuid.uuid4()}"
        inside = [mark, "PATH=/image:/usr/bin:/bin"]
        inside += [f"{each['name']}={each['value']}" for each in spec.get("env", [])] + list(environment)
        inside += command or spec["command"] + spec.get("args", [])
        log = self.directory / f"{name}-{time.monotonic_ns()}.log"
        script = ["unshare", "--mount", "sh", "-c", _ROOT_SCRIPT, "sh", *inside]
        with log.open("w") as out:
            process = subprocess.Popen(
                ["nsenter", f"--target={self.init}", "--net", "--pid", "--ipc", *script],
                env={**os.environ, **variables},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return Container(process, log, mark)

    def get(self, container, port, path, host=ADDRESS):
        """The status and the body of a GET on the pod's address, as a probe of the kubelet or Prometheus asks."""
        (number,) = [each["containerPort"] for each in self.container(container)["ports"] if each["name"] == port]
        done = self._inside(f"curl -s -m 30 -w '\\n%{{http_code}}' http://{host}:{number}{path}")
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), body

    def passes(self, container, probe):
        """Whether a container's probe succeeds."""
        get = self.container(container)[probe]["httpGet"]
        return self.get(container, get["port"], get["path"])[0] == 200
