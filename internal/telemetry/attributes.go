package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"google.golang.org/grpc/codes"
)

// The keys of log lines: one word for one thing in all of Quartet.
const (
	KeyPod          = "pod"
	KeyPodUID       = "pod.uid"
	KeyContainer    = "container"
	KeyContainerID  = "container.id"
	KeySandboxID    = "sandbox.id"
	KeyImage        = "image"
	KeyObject       = "object"
	KeyVolume       = "volume"
	KeySource       = "source"
	KeyComponent    = "component"
	KeyFile         = "file"
	KeyOp           = "op"
	KeyEvent        = "event"
	KeyExitCode     = "exit_code"
	KeyReason       = "reason"
	KeyCause        = "cause"
	KeyPhase        = "phase"
	KeyProbe        = "probe"
	KeyResult       = "result"
	KeyError        = "error"
	KeyRetryAfter   = "retry_after"
	KeyDuration     = "duration"
	KeyGracePeriod  = "grace_period"
	KeyRestartCount = "restart_count"
	KeyTraceID      = "trace_id"
	KeySpanID       = "span_id"
)

// The attributes of spans that OpenTelemetry has a name for, beside those that Subject gives. Values are text unless said
// otherwise.
const (
	// AttrFile is the path of a manifest.
	AttrFile = semconv.FilePathKey
	// AttrURL is where the manifest of a server is, without what may be secret in a URL.
	AttrURL = semconv.URLFullKey
	// AttrExitCode is a container's exit code, a number.
	AttrExitCode = semconv.ProcessExitCodeKey
	// AttrReason is the runtime's word for why a container ended: Completed, Error, OOMKilled.
	AttrReason = semconv.K8SContainerStatusReasonKey
	// AttrRestartCount is how often a container was restarted before, a number.
	AttrRestartCount = semconv.K8SContainerRestartCountKey
	// AttrPhase is the phase that a pod's status has.
	AttrPhase = semconv.K8SPodStatusPhaseKey
	// AttrErrorType is what kind of error a span failed of: a reason of Kubernetes, a gRPC code or a type of Go.
	AttrErrorType = semconv.ErrorTypeKey
)

// SpanWait is the name of a span in which something waited: see Wait.
const SpanWait = "wait"

// The attributes of spans that are Quartet's own.
const (
	// AttrSandboxID is the runtime's id of a sandbox.
	AttrSandboxID = attribute.Key("quartet.sandbox.id")
	// AttrSource is the name of a source of pods.
	AttrSource = attribute.Key("quartet.source")
	// AttrObject is a config map or secret, as "configmap NAMESPACE/NAME".
	AttrObject = attribute.Key("quartet.object")
	// AttrVolume is the name of a volume in a pod's spec, AttrVolumePlugin the kind of it, for example "kubernetes.io/empty-dir".
	AttrVolume       = attribute.Key("quartet.volume")
	AttrVolumePlugin = attribute.Key("quartet.volume.plugin")
	// AttrOp is what a change does to a pod: ADD, UPDATE, DELETE, REMOVE, RECONCILE.
	AttrOp = attribute.Key("quartet.op")
	// AttrCause is why a worker worked: config, lost, probe, seen or due.
	AttrCause = attribute.Key("quartet.cause")
	// AttrTry counts the pieces of work in a row that left something to be done, a number from 1.
	AttrTry = attribute.Key("quartet.try")
	// AttrProbe is the kind of a probe: liveness, readiness, startup.
	AttrProbe = attribute.Key("quartet.probe")
	// AttrOutcome is what a piece of work came to when it was neither done nor failed, and what a probe came to: success, failure.
	AttrOutcome = attribute.Key("quartet.outcome")
	// AttrEvent is the type of a lifecycle event: ContainerStarted, ContainerDied, ContainerRemoved, PodSync.
	AttrEvent = attribute.Key("quartet.event")
	// AttrReady is true when the status says that the pod is ready.
	AttrReady = attribute.Key("quartet.ready")
	// AttrGracePeriod is how long containers have to end by themselves, a number of seconds.
	AttrGracePeriod = attribute.Key("quartet.grace_period")
	// AttrWait is what a wait was for: a few words for people.
	AttrWait = attribute.Key("quartet.wait")
	// AttrHook is the name of a lifecycle hook: postStart or preStop.
	AttrHook = attribute.Key("quartet.hook")

	// attrIdle marks a span that is not sent: see Idle.
	attrIdle = attribute.Key("quartet.idle")
)

// Subject is what a span is about. Fields that are empty are left out.
type Subject struct {
	// Namespace, Pod and UID are those of the pod's metadata.
	Namespace, Pod, UID string
	// Container is the name in the pod's spec, ContainerID the runtime's id of it.
	Container, ContainerID string
	// SandboxID is the runtime's id of the sandbox.
	SandboxID string
	// Image is the name of an image as it was asked for.
	Image string
}

// Attributes are the subject in the words of the conventions.
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

// Call describes a gRPC call: its full name without a leading slash, the code of its answer, and the path of the socket that
// it went to.
func Call(method string, answer codes.Code, socket string) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.RPCSystemNameGRPC, semconv.RPCMethod(method), semconv.RPCResponseStatusCode(CodeName(answer)), semconv.ServerAddress(socket),
	}
}
