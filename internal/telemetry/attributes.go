package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"google.golang.org/grpc/codes"

	"github.com/quartet-node/quartet/internal/logging"
)

// The keys of log lines. Each concept has one key in all of Quartet.
const (
	KeyPod          = "pod"
	KeyPodUID       = "pod.uid"
	KeyContainer    = "container"
	KeyContainerID  = "container.id"
	KeySandboxID    = "sandbox.id"
	KeyImage        = "image"
	KeyObject       = "object"
	KeyVolume       = "volume"
	KeyPlugin       = "plugin"
	KeyDriver       = "driver"
	KeySource       = "source"
	KeyComponent    = "component"
	KeyFile         = "file"
	KeyOp           = "op"
	KeyEvent        = "event"
	KeyExitCode     = "exit_code"
	KeyReason       = logging.KeyReason
	KeyCause        = "cause"
	KeyPhase        = "phase"
	KeyProbe        = "probe"
	KeyResult       = "result"
	KeyError        = logging.KeyError
	KeyRetryAfter   = "retry_after"
	KeyDuration     = "duration"
	KeyGracePeriod  = "grace_period"
	KeyRestartCount = "restart_count"
	KeyTraceID      = "trace_id"
	KeySpanID       = "span_id"
)

// The span attributes that OpenTelemetry's conventions define, in addition to those of Subject. Values are text unless
// stated otherwise.
const (
	// AttrFile is the path of a manifest.
	AttrFile = semconv.FilePathKey
	// AttrURL is the URL of a server's manifest, without secret parts.
	AttrURL = semconv.URLFullKey
	// AttrExitCode is a container's exit code, a number.
	AttrExitCode = semconv.ProcessExitCodeKey
	// AttrReason is the runtime's reason for the end of a container: Completed, Error, OOMKilled.
	AttrReason = semconv.K8SContainerStatusReasonKey
	// AttrRestartCount is the number of previous restarts of a container.
	AttrRestartCount = semconv.K8SContainerRestartCountKey
	// AttrPhase is the phase in a pod's status.
	AttrPhase = semconv.K8SPodStatusPhaseKey
	// AttrErrorType is the type of a span's error: a reason of Kubernetes, a gRPC code or a type of Go.
	AttrErrorType = semconv.ErrorTypeKey
)

// SpanWait is the name of a span that represents a wait, see Wait.
const SpanWait = "wait"

// Quartet's own span attributes.
const (
	// AttrSandboxID is the runtime's id of a sandbox.
	AttrSandboxID = attribute.Key("quartet.sandbox.id")
	// AttrSource is the name of a source of pods.
	AttrSource = attribute.Key("quartet.source")
	// AttrObject is a config map or secret, as "configmap NAMESPACE/NAME".
	AttrObject = attribute.Key("quartet.object")
	// AttrVolume is the name of a volume in a pod's spec, and AttrVolumePlugin its kind, for example
	// "kubernetes.io/empty-dir".
	AttrVolume       = attribute.Key("quartet.volume")
	AttrVolumePlugin = attribute.Key("quartet.volume.plugin")
	// AttrOp is the operation of a change of a pod: ADD, UPDATE, DELETE, REMOVE, RECONCILE.
	AttrOp = attribute.Key("quartet.op")
	// AttrCause is the reason for a worker's run: config, lost, probe, seen or due.
	AttrCause = attribute.Key("quartet.cause")
	// AttrTry counts the consecutive runs that left something to do, a number from 1.
	AttrTry = attribute.Key("quartet.try")
	// AttrProbe is the kind of a probe: liveness, readiness, startup.
	AttrProbe = attribute.Key("quartet.probe")
	// AttrOutcome is the result of a run that neither completed nor failed, and the result of a probe: success, failure.
	AttrOutcome = attribute.Key("quartet.outcome")
	// AttrEvent is the type of a lifecycle event: ContainerStarted, ContainerDied, ContainerRemoved, PodSync.
	AttrEvent = attribute.Key("quartet.event")
	// AttrReady is true if the pod is ready according to its status.
	AttrReady = attribute.Key("quartet.ready")
	// AttrGracePeriod is the grace period of containers in seconds.
	AttrGracePeriod = attribute.Key("quartet.grace_period")
	// AttrWait describes the reason of a wait in a few words for people.
	AttrWait = attribute.Key("quartet.wait")
	// AttrHook is the name of a lifecycle hook: postStart or preStop.
	AttrHook = attribute.Key("quartet.hook")

	// attrIdle marks a span that is not exported, see Idle.
	attrIdle = attribute.Key("quartet.idle")
)

// Subject is the object of a span. Empty fields are omitted.
type Subject struct {
	// Namespace, Pod and UID are those of the pod's metadata.
	Namespace, Pod, UID string
	// Container is the name in the pod's spec, and ContainerID the runtime's ID.
	Container, ContainerID string
	// SandboxID is the runtime's id of the sandbox.
	SandboxID string
	// Image is the requested name of an image.
	Image string
}

// Attributes returns the attributes of the subject as named by the conventions.
func (s Subject) Attributes() []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 7)
	add := func(key attribute.Key, value string) {
		if value != "" {
			attrs = append(attrs, key.String(value))
		}
	}
	add(semconv.K8SNamespaceNameKey, s.Namespace)
	add(semconv.K8SPodNameKey, s.Pod)
	add(semconv.K8SPodUIDKey, s.UID)
	add(semconv.K8SContainerNameKey, s.Container)
	add(semconv.ContainerIDKey, s.ContainerID)
	add(AttrSandboxID, s.SandboxID)
	add(semconv.ContainerImageNameKey, s.Image)
	return attrs
}

// Call returns the attributes of a gRPC call: its full name without a leading slash, the code of its response, and the
// path of the socket.
func Call(method string, answer codes.Code, socket string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.RPCSystemNameGRPC,
		semconv.RPCMethod(method),
		semconv.RPCResponseStatusCode(CodeName(answer)),
		semconv.ServerAddress(socket),
	}
}
