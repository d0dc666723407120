#!/usr/bin/python3
"""A pleg in Python: it observes the pods of a container runtime and serves quartet.lifecycle.v1.

It is a starting point for a part of your own. It keeps the whole contract of proto/quartet/lifecycle/v1/lifecycle.proto
with the simplest means: it lists the runtime every second, and inspects the pods that have changed. Its record is in
memory, so after a restart every subscriber gets a snapshot. It makes no traces, and it checks no peer: the mode of the
socket's directory lets only its own user in.

The state is used by one thread, because everything is a coroutine, so there are no locks except one for each pod.
"""
import argparse
import asyncio
import collections
import os
import signal
import sys
import time
import uuid

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

sys.path.insert(0, os.environ.get("STUBS", os.path.join(os.path.dirname(os.path.abspath(__file__)), "stubs")))
import api_pb2 as cri  # noqa: E402
import api_pb2_grpc as cri_grpc  # noqa: E402
from quartet.lifecycle.v1 import lifecycle_pb2 as lifecycle  # noqa: E402
from quartet.lifecycle.v1 import lifecycle_pb2_grpc as lifecycle_grpc  # noqa: E402
from quartet.stream.v1 import stream_pb2 as stream  # noqa: E402

RELIST_PERIOD = 1  # seconds between two lists of the runtime
CALL_TIMEOUT = 5  # seconds for a call of the runtime; a pod whose inspection takes longer is reported as unknown
RELIST_PATIENCE = 1  # seconds for which a relist waits for inspections; one that hangs delays only its own pod
RELIST_LIMIT = 180  # seconds without a relist after which the pleg is unhealthy
BOOKMARK_PERIOD = 10  # seconds of silence after which a stream sends a bookmark
LOG_SIZE = 2048  # events that are kept for slow and resumed subscribers

POD_UID, POD_NAME, POD_NAMESPACE, CONTAINER_NAME = (
    "io.kubernetes.pod.uid", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.container.name")
RUNNING, EXITED = lifecycle.CONTAINER_STATE_RUNNING, lifecycle.CONTAINER_STATE_EXITED
STARTED, DIED = lifecycle.EVENT_TYPE_CONTAINER_STARTED, lifecycle.EVENT_TYPE_CONTAINER_DIED
REMOVED, POD_SYNC = lifecycle.EVENT_TYPE_CONTAINER_REMOVED, lifecycle.EVENT_TYPE_POD_SYNC


def boottime():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def timestamp(nanoseconds):
    """Returns a time as protobuf has it; None for the runtime's 0, which means that there is none."""
    return Timestamp(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9) if nanoseconds > 0 else None


def sandbox_of(s):
    """Converts a sandbox of the runtime. The states of both contracts have the same order, and ours begin at 1."""
    on_host = s.linux.namespaces.options.network == cri.NODE
    addresses = [s.network.ip] + [a.ip for a in s.network.additional_ips] if s.network.ip and not on_host else []
    return lifecycle.Sandbox(
        id=s.id, state=s.state + 1, attempt=s.metadata.attempt, created_at=timestamp(s.created_at), ips=addresses,
        host_network=on_host, labels=s.labels, annotations=s.annotations, runtime_handler=s.runtime_handler)


def container_of(c, sandbox_id):
    """Converts a container of the runtime."""
    found = lifecycle.Container(
        id=c.id, sandbox_id=sandbox_id, name=c.labels.get(CONTAINER_NAME, c.metadata.name), attempt=c.metadata.attempt,
        state=c.state + 1, created_at=timestamp(c.created_at), started_at=timestamp(c.started_at),
        finished_at=timestamp(c.finished_at), exit_code=c.exit_code, reason=c.reason, message=c.message,
        image=c.image.image, image_ref=c.image_ref, image_id=c.image_id, labels=c.labels, annotations=c.annotations,
        log_path=c.log_path)
    if c.user.HasField("linux"):
        found.user.uid, found.user.gid = c.user.linux.uid, c.user.linux.gid
        found.user.supplemental_groups.extend(c.user.linux.supplemental_groups)
    if c.resources.HasField("linux"):
        limits = c.resources.linux
        found.resources.CopyFrom(lifecycle.LinuxResources(
            cpu_shares=limits.cpu_shares, cpu_quota=limits.cpu_quota, cpu_period=limits.cpu_period,
            memory_limit_in_bytes=limits.memory_limit_in_bytes))
    return found


def is_gone(pod):
    return not pod.sandboxes and not pod.containers


def changes(old, new):
    """Returns the changes from one status of a pod to the next: the types of events, each with its container."""
    before, found = {c.id: c for c in old.containers}, []
    for c in sorted(new.containers, key=lambda c: c.created_at.ToNanoseconds()):
        state = before[c.id].state if c.id in before else None
        if c.state == RUNNING != state:
            found.append((STARTED, c))
        if c.state == EXITED != state:  # also if it was never observed running
            found.append((DIED, c))
    present = {c.id for c in new.containers}
    for c in old.containers:
        if c.id not in present:
            if c.state != EXITED:
                found.append((DIED, c))
            found.append((REMOVED, c))
    if not found and essence(old) != essence(new):
        found.append((POD_SYNC, None))
    return found


def essence(pod):
    """Returns a status without its times of observation."""
    copy = lifecycle.PodStatus()
    copy.CopyFrom(pod)
    copy.observed_boottime_ns = 0
    copy.ClearField("observed_at")
    return copy


def event_of(kind, container, pod):
    """Returns the event of a change."""
    now = timestamp(time.time_ns())
    event = lifecycle.Event(type=kind, pod_uid=pod.uid, observed_at=now, occurred_at=now, status=pod)
    if container is not None:
        event.container_id, event.container_name = container.id, container.name
        if kind == STARTED and container.HasField("started_at"):
            event.occurred_at.CopyFrom(container.started_at)
    if kind == DIED:
        event.exit_code, event.reason = container.exit_code, container.reason
        if container.HasField("finished_at"):
            event.occurred_at.CopyFrom(container.finished_at)
    return event


class Pleg(lifecycle_grpc.LifecycleServiceServicer):
    """The record, the log of events, and the RPCs."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.pods = {}  # the record: the last status of each pod by its UID
        self.inspecting = collections.defaultdict(asyncio.Lock)  # by UID
        self.epoch = uuid.uuid4().hex  # tokens of an earlier process have another one
        self.log = collections.deque(maxlen=LOG_SIZE)  # the last events as (key, event, removed)
        self.revision = 0  # the number of events so far
        self.news = asyncio.Condition()  # something was appended to the log
        self.relisted = asyncio.Event()  # the first relist has finished
        self.last_relist, self.problem = 0, "no relist has finished yet: start the container runtime"
        self.status, self.version = cri.StatusResponse(), cri.VersionResponse()

    # Observing.

    async def run(self):
        """Lists the runtime again and again."""
        while True:
            try:
                await self.relist()
                self.version = await self.runtime.Version(cri.VersionRequest(), timeout=CALL_TIMEOUT)
                self.status = await self.runtime.Status(cri.StatusRequest(), timeout=CALL_TIMEOUT)
                self.problem = ""
            except grpc.aio.AioRpcError as error:
                self.problem = f"the container runtime does not answer, start it: {error.details()}"
            await asyncio.sleep(RELIST_PERIOD)

    async def relist(self):
        """Lists all pods, and inspects those that have changed."""
        sandboxes = await self.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=CALL_TIMEOUT)
        containers = await self.runtime.ListContainers(cri.ListContainersRequest(), timeout=CALL_TIMEOUT)
        listed = collections.defaultdict(set)
        for item in list(sandboxes.items) + list(containers.containers):
            if item.labels.get(POD_UID):  # others belong to other programs
                listed[item.labels[POD_UID]].add((item.id, item.state + 1))
        changed = [uid for uid in listed.keys() | self.pods.keys() if self.differs(uid, listed[uid])]
        if changed:
            tasks = [asyncio.create_task(self.inspect(uid)) for uid in changed]
            for task in tasks:
                task.add_done_callback(lambda task: task.exception())  # failed has noted it
            await asyncio.wait(tasks, timeout=RELIST_PATIENCE)
        self.last_relist = time.time_ns()
        self.relisted.set()

    def differs(self, uid, listed):
        """Reports whether a pod must be inspected: the list differs from the record, or the last inspection failed."""
        pod = self.pods.get(uid, lifecycle.PodStatus())
        recorded = {(item.id, item.state) for item in list(pod.sandboxes) + list(pod.containers)}
        return listed != recorded or pod.inspect_error != ""

    async def inspect(self, uid):
        """Asks the runtime for the present status of a pod, records it, and returns it."""
        async with self.inspecting[uid]:
            pod = lifecycle.PodStatus(
                uid=uid, observed_boottime_ns=boottime(), observed_at=timestamp(time.time_ns()))
            try:
                await self.ask(pod)
            except grpc.aio.AioRpcError as error:
                await self.failed(uid, error)
                raise
            if not pod.ips and uid in self.pods:
                pod.ips.extend(self.pods[uid].ips)  # the network was torn down
            await self.publish(pod)
        if is_gone(pod) and not self.inspecting[uid].locked():
            del self.inspecting[uid]
        return pod

    async def ask(self, pod):
        """Fills in a status."""
        selector = {POD_UID: pod.uid}
        sandboxes = await self.runtime.ListPodSandbox(
            cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=selector)), timeout=CALL_TIMEOUT)
        containers = await self.runtime.ListContainers(
            cri.ListContainersRequest(filter=cri.ContainerFilter(label_selector=selector)), timeout=CALL_TIMEOUT)
        for item in sorted(sandboxes.items, key=lambda item: -item.created_at):
            found = await present(self.runtime.PodSandboxStatus(
                cri.PodSandboxStatusRequest(pod_sandbox_id=item.id), timeout=CALL_TIMEOUT))
            if found:
                pod.sandboxes.append(sandbox_of(found.status))
        for item in sorted(containers.containers, key=lambda item: -item.created_at):
            found = await present(self.runtime.ContainerStatus(
                cri.ContainerStatusRequest(container_id=item.id), timeout=CALL_TIMEOUT))
            if found:
                pod.containers.append(container_of(found.status, item.pod_sandbox_id))
        for item in list(pod.containers)[:1] + list(pod.sandboxes)[:1]:
            pod.name, pod.namespace = item.labels.get(POD_NAME, ""), item.labels.get(POD_NAMESPACE, "")
        for sandbox in pod.sandboxes:
            if sandbox.state == lifecycle.SANDBOX_STATE_READY:
                pod.ips.extend(sandbox.ips)
                break

    async def failed(self, uid, error):
        """Records that a pod cannot be inspected. Its last status stays."""
        if uid in self.pods:
            pod = lifecycle.PodStatus()
            pod.CopyFrom(self.pods[uid])
            if not pod.inspect_error:
                pod.unknown_since.CopyFrom(timestamp(time.time_ns()))
            pod.inspect_error = error.details() or str(error.code())
            await self.publish(pod)

    async def publish(self, pod):
        """Makes a status the record, and appends the events of its changes to the log."""
        old = self.pods.get(pod.uid, lifecycle.PodStatus(uid=pod.uid))
        if is_gone(pod):
            self.pods.pop(pod.uid, None)
        else:
            self.pods[pod.uid] = pod
        if is_gone(pod) and is_gone(old):
            return
        found = changes(old, pod)
        for number, (kind, container) in enumerate(found, 1):
            self.log.append((pod.uid, event_of(kind, container, pod), is_gone(pod) and number == len(found)))
            self.revision += 1
        async with self.news:
            self.news.notify_all()

    # The RPCs.

    async def WatchEvents(self, request, context):
        await self.relisted.wait()  # an earlier snapshot would say that there are no pods
        start, position = self.start_of(request.resume_token)
        resumed = start == stream.START_RESUMED
        pods = [] if resumed else list(self.pods.values())
        position = position if resumed else self.revision
        yield frame(stream.KIND_OPENED, self.token(position) if resumed else b"", opening=stream.Opening(start=start))
        for pod in pods:
            yield frame(stream.KIND_SNAPSHOT, key=pod.uid, event=event_of(POD_SYNC, None, pod))
        if not resumed:
            yield frame(stream.KIND_SYNCED, self.token(position))
        while True:
            if position == self.revision and not await self.wait_for_news(position):
                yield frame(stream.KIND_BOOKMARK, self.token(position))
            elif position < self.revision - len(self.log):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow: subscribe again with the last token")
            else:
                key, event, removed = self.log[position - self.revision]
                position += 1
                yield frame(stream.KIND_DELTA, self.token(position), key=key, event=event, removed=removed)

    def token(self, position):
        return f"{self.epoch}/{position}".encode()

    def start_of(self, token):
        """Returns how a subscription with a token begins, and its position in the log."""
        if not token:
            return stream.START_SNAPSHOT, 0
        epoch, _, position = token.decode(errors="replace").partition("/")
        if not position.isdecimal():
            return stream.START_SNAPSHOT_INVALID, 0
        if epoch != self.epoch:
            return stream.START_SNAPSHOT_EPOCH, 0
        if not self.revision - len(self.log) <= int(position) <= self.revision:
            return stream.START_SNAPSHOT_COMPACTED, 0
        return stream.START_RESUMED, int(position)

    async def wait_for_news(self, position):
        """Waits until there is an event after a position, and returns False if there is none for a while."""
        async def newer():
            async with self.news:
                await self.news.wait_for(lambda: self.revision > position)
        try:
            await asyncio.wait_for(newer(), BOOKMARK_PERIOD)
        except asyncio.TimeoutError:
            return False
        return True

    async def GetPodStatus(self, request, context):
        if not request.uid:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "uid is empty: name the pod")
        if not 0 <= request.newer_than_boottime_ns <= boottime():
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "newer_than_boottime_ns is negative or in the future")
        await self.check_relisted(context)
        pod = self.pods.get(request.uid, lifecycle.PodStatus(uid=request.uid))
        if 0 < request.newer_than_boottime_ns >= pod.observed_boottime_ns:
            try:
                pod = await self.inspect(request.uid)
            except grpc.aio.AioRpcError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"inspecting the pod: {error.details()}")
        return lifecycle.GetPodStatusResponse(status=pod)

    async def ListPodStatuses(self, request, context):
        await self.check_relisted(context)
        return lifecycle.ListPodStatusesResponse(statuses=[self.pods[uid] for uid in sorted(self.pods)])

    async def check_relisted(self, context):
        if not self.relisted.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the first relist has not finished")

    async def RequestRelist(self, request, context):
        try:
            await self.relist()
        except grpc.aio.AioRpcError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the container runtime: {error.details()}")
        return lifecycle.RequestRelistResponse(relisted_at=timestamp(time.time_ns()))

    async def GetHealth(self, request, context):
        conditions = {c.type: c for c in self.status.status.conditions}
        ready, network = (conditions.get(kind, cri.RuntimeCondition()) for kind in ("RuntimeReady", "NetworkReady"))
        overdue = self.last_relist > 0 and time.time_ns() - self.last_relist > RELIST_LIMIT * 10**9
        reasons = [self.problem] if self.problem else []
        if not self.problem and not ready.status:
            reasons.append(f"the container runtime is not ready, see its log: {ready.reason}: {ready.message}")
        if overdue:
            reasons.append(f"no relist has finished for {RELIST_LIMIT} s, see the log of the container runtime")
        runtime = lifecycle.Runtime(
            name=self.version.runtime_name, version=self.version.runtime_version,
            ready=ready.status and not self.problem, ready_message=ready.message,
            network_ready=network.status and not self.problem, network_ready_message=network.message,
            handlers=[h.name for h in self.status.runtime_handlers],
            runtime_handlers=[lifecycle.RuntimeHandler(
                name=h.name, recursive_read_only_mounts=h.features.recursive_read_only_mounts,
                user_namespaces=h.features.user_namespaces)
                for h in sorted(self.status.runtime_handlers, key=lambda h: h.name)],
            supplemental_groups_policy=self.status.features.supplemental_groups_policy)
        return lifecycle.GetHealthResponse(
            healthy=not reasons, reasons=reasons, last_relist_at=timestamp(self.last_relist), relist_overdue=overdue,
            mode=lifecycle.RELIST_MODE_GENERIC, runtime=runtime if self.version.runtime_name else None)


def frame(kind, token=b"", event=None, **fields):
    """Returns a message of the stream."""
    return lifecycle.WatchEventsResponse(frame=stream.Frame(kind=kind, resume_token=token, **fields), event=event)


async def present(call):
    """Returns the answer of a call, and None if its object is gone."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            return None
        raise


async def check_health(request, context):
    """Is grpc.health.v1.Health/Check without its stubs: SERVING for the empty name, which is an empty request."""
    if request:
        await context.abort(grpc.StatusCode.NOT_FOUND, "only the empty name has a health")
    return b"\x08\x01"


async def list_health(request, context):
    """Is grpc.health.v1.Health/List: the same for the empty name."""
    return b"\x0a\x04\x12\x02\x08\x01"


async def main():
    # The other flags with which a node starts its parts are not needed.
    parser = argparse.ArgumentParser(description="A pleg in Python.", allow_abbrev=False)
    parser.add_argument("--listen", required=True, help="unix:///PATH to serve on")
    parser.add_argument("--container-runtime-endpoint", required=True, help="unix:///PATH of the container runtime")
    flags, _ = parser.parse_known_args()
    os.makedirs(os.path.dirname(flags.listen.removeprefix("unix://")), mode=0o700, exist_ok=True)
    channel = grpc.aio.insecure_channel(flags.container_runtime_endpoint, options=[
        ("grpc.max_reconnect_backoff_ms", 1000), ("grpc.max_receive_message_length", 16 << 20)])
    # Clients ping after 15 s of silence; without these options gRPC closes the connection of one that pings more often
    # than every 5 min.
    server = grpc.aio.server(options=[
        ("grpc.http2.min_ping_interval_without_data_ms", 5000), ("grpc.keepalive_permit_without_calls", 1)])
    pleg = Pleg(cri_grpc.RuntimeServiceStub(channel))
    lifecycle_grpc.add_LifecycleServiceServicer_to_server(pleg, server)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check_health),
                                  "List": grpc.unary_unary_rpc_method_handler(list_health)})])
    server.add_insecure_port(flags.listen)
    await server.start()
    print("serving on", flags.listen, file=sys.stderr, flush=True)
    observing = asyncio.create_task(pleg.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, observing.cancel)
    try:
        await observing  # it ends only by a signal or a mistake in this program
    except asyncio.CancelledError:
        await server.stop(grace=1)


if __name__ == "__main__":
    asyncio.run(main())
