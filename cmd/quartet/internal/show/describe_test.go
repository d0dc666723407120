package show

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// wholePod returns a pod with all kinds of fields; its container main crashes.
func wholePod() *v1.Pod {
	p := pod("default", "crash-node-1", "main", "side")
	p.Labels = map[string]string{"app": "crash", "tier": "front"}
	p.Annotations = map[string]string{
		"example.com/owner":           "team",
		"kubernetes.io/config.source": "file",
		"quartet.dev/traceparent":     "x",
	}
	p.Status.HostIP, p.Status.QOSClass, p.Status.PodIPs = "10.0.0.5", v1.PodQOSBurstable, []v1.PodIP{
		{IP: "10.88.0.7"},
		{IP: "fd00::7"},
	}
	p.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodInitialized, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(ago(2 * time.Hour))},
		{
			Type:               v1.PodReady,
			Status:             v1.ConditionFalse,
			Reason:             "ContainersNotReady",
			Message:            "containers with unready status: [main]",
			LastTransitionTime: metav1.NewTime(ago(time.Minute)),
		},
	}
	p.Spec.RestartPolicy, p.Spec.TerminationGracePeriodSeconds, p.Spec.HostPID = v1.RestartPolicyAlways, ptr.To[int64](
		30,
	), true
	p.Spec.Volumes = []v1.Volume{
		{
			Name: "data",
			VolumeSource: v1.VolumeSource{
				HostPath: &v1.HostPathVolumeSource{Path: "/srv/data", Type: ptr.To(v1.HostPathDirectory)},
			},
		},
		{
			Name: "scratch",
			VolumeSource: v1.VolumeSource{
				EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))},
			},
		},
		{
			Name:         "files",
			VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "files"}},
		},
		{Name: "share", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nfs.example.com", Path: "/"}}},
	}
	main := &p.Spec.Containers[0]
	main.Image, main.Command, main.Args = "example.com/crash:1", []string{"/bin/crash"}, []string{"-c", "exit 3; #", ""}
	main.Ports = []v1.ContainerPort{
		{Name: "http", ContainerPort: 80, HostPort: 8080, Protocol: v1.ProtocolTCP},
		{ContainerPort: 53, Protocol: v1.ProtocolUDP},
	}
	main.Resources.Limits = v1.ResourceList{
		v1.ResourceMemory: resource.MustParse("64Mi"),
		v1.ResourceCPU:    resource.MustParse("500m"),
	}
	main.LivenessProbe = &v1.Probe{
		PeriodSeconds:    10,
		TimeoutSeconds:   1,
		SuccessThreshold: 1,
		FailureThreshold: 3,
		ProbeHandler: v1.ProbeHandler{
			HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http"), Scheme: v1.URISchemeHTTP},
		},
	}
	main.StartupProbe = &v1.Probe{
		PeriodSeconds:    1,
		TimeoutSeconds:   1,
		SuccessThreshold: 1,
		FailureThreshold: 30,
		ProbeHandler: v1.ProbeHandler{
			Exec: &v1.ExecAction{Command: []string{"/bin/started"}},
		},
	}
	main.ReadinessProbe = &v1.Probe{
		PeriodSeconds:    5,
		TimeoutSeconds:   1,
		SuccessThreshold: 1,
		FailureThreshold: 3,
		ProbeHandler: v1.ProbeHandler{
			GRPC: &v1.GRPCAction{Port: 81},
		},
	}
	main.EnvFrom = []v1.EnvFromSource{
		{Prefix: "DB_", SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "db"}}},
	}
	main.Env = []v1.EnvVar{
		{Name: "MODE", Value: "fast"},
		{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{
			Name: "PASSWORD",
			ValueFrom: &v1.EnvVarSource{
				SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "db"}, Key: "password"},
			},
		},
	}
	main.VolumeMounts = []v1.VolumeMount{
		{Name: "data", MountPath: "/data", SubPath: "crash", ReadOnly: true},
		{Name: "scratch", MountPath: "/tmp"},
	}
	p.Status.ContainerStatuses[0] = v1.ContainerStatus{
		Name:         "main",
		RestartCount: 7,
		ContainerID:  "containerd://c7",
		ImageID:      "sha256:1",
		State: v1.ContainerState{
			Waiting: &v1.ContainerStateWaiting{
				Reason:  "CrashLoopBackOff",
				Message: "back-off 5m0s restarting failed container=main",
			},
		},
		LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode:   3,
			Reason:     "Error",
			Message:    "no\nconfiguration\x1b[2J",
			StartedAt:  metav1.NewTime(ago(82 * time.Second)),
			FinishedAt: metav1.NewTime(ago(80 * time.Second)),
		}},
	}
	p.Spec.InitContainers = []v1.Container{
		{Name: "proxy", Image: "proxy:1", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
	}
	return p
}

func (n *node) putCrash() {
	n.putPod(wholePod(), "file", syncing)
	n.engine.setWorkers(&enginev1.Worker{
		PodUid:     "uid-default-crash-node-1",
		Namespace:  "default",
		Name:       "crash-node-1",
		State:      syncing,
		StateSince: timestamppb.New(ago(2 * time.Hour)),
		NextSyncAt: timestamppb.New(now.Add(220 * time.Second)),
		WaitsFor:   "main: CrashLoopBackOff",
		Phases: []*enginev1.StartPhase{
			{Phase: "sandbox", EndedAt: timestamppb.New(ago(2 * time.Hour)), Took: durationpb.New(123456 * time.Microsecond)},
			{
				Phase:     "start",
				Container: "main",
				EndedAt:   timestamppb.New(ago(82 * time.Second)),
				Took:      durationpb.New(20 * time.Millisecond),
			},
		},
		Volumes: []*enginev1.Volume{
			{Name: "data", Plugin: "kubernetes.io/host-path", State: enginev1.VolumeState_VOLUME_STATE_READY},
			{
				Name: "files", Plugin: "kubernetes.io/csi", State: enginev1.VolumeState_VOLUME_STATE_SETTING_UP,
				Claim: "files", PersistentVolume: "pvc-1", LastError: "it is not attached", WaitsFor: "volumeattachment csi-1",
			},
			{
				Name:   "old",
				Plugin: "kubernetes.io/empty-dir",
				State:  enginev1.VolumeState_VOLUME_STATE_FOUND,
				Path:   "/pods/u/volumes/kubernetes.io~empty-dir/old",
			},
			{
				Name:      "scratch",
				Plugin:    "kubernetes.io/empty-dir",
				State:     enginev1.VolumeState_VOLUME_STATE_SETTING_UP,
				Path:      "/pods/u/volumes/kubernetes.io~empty-dir/scratch",
				LastError: "mount tmpfs:\nno space",
				NextTryAt: timestamppb.New(now.Add(8 * time.Second)),
			},
			{
				Name:   "share",
				Plugin: "kubernetes.io/nfs",
				State:  enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN,
				Since:  timestamppb.New(ago(3 * time.Minute)),
			},
		},
		Probes: []*enginev1.Probe{
			{
				Container:   "main",
				ContainerId: "c7",
				Kind:        "Liveness",
				Result:      enginev1.ProbeResult_PROBE_RESULT_SUCCESS,
				InARow:      2,
				AskedAt:     timestamppb.New(ago(3 * time.Second)),
				Answer:      enginev1.ProbeResult_PROBE_RESULT_FAILURE,
				Said:        "HTTP probe failed with statuscode:\n500",
				NextAt:      timestamppb.New(now.Add(7 * time.Second)),
			},
			{
				Container:   "main",
				ContainerId: "c7",
				Kind:        "Readiness",
				Result:      enginev1.ProbeResult_PROBE_RESULT_FAILURE,
				AskingSince: timestamppb.New(ago(12 * time.Second)),
			},
			{
				Container:   "main",
				ContainerId: "c7",
				Kind:        "Startup",
				Result:      enginev1.ProbeResult_PROBE_RESULT_SUCCESS,
				InARow:      1,
				ResultSince: timestamppb.New(ago(80 * time.Second)),
				AskedAt:     timestamppb.New(ago(80 * time.Second)),
				Said:        "the runtime is away",
				AskingSince: timestamppb.New(ago(5 * time.Second)),
			},
		},
	})
	n.putEvent(
		"default",
		"crash-node-1",
		"Warning",
		"main",
		"BackOff",
		"Back-off restarting failed container main in pod crash-node-1",
		6,
		ago(10*time.Second),
	)
	n.putEvent("default", "crash-node-1", "Normal", "main", "Started", "Container started", 1, ago(82*time.Second))
	n.putEvent("default", "other-node-1", "Normal", "main", "Started", "Container started", 1, ago(time.Second))
}

func TestDescribePod(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	if got := n.must("describe", "pod"); got != "There are no pods on this node.\n" {
		t.Errorf("without pods: %q", got)
	}
	n.putCrash()
	if got := n.must("describe", "pod", "crash"); !strings.Contains(got, "\nSource:          file\n") {
		t.Errorf("without configmux:\n%s", got)
	}
	n.serve(layout.ConfigMux)
	n.config.set(sources()...)
	golden(t, "describe.txt", n.must("describe", "pod", "crash"))
	golden(t, "describe.yaml", n.must("describe", "pod", "crash", "-o", "yaml"))
	going := pod("kube-system", "going-node-1", "main")
	going.Status.ContainerStatuses[0].State = v1.ContainerState{
		Terminated: &v1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"},
	}
	n.putPod(going, "", terminating)
	golden(t, "describe-going.txt", n.must("describe", "po", "-n", "kube-system"))
	var list struct {
		Items []struct {
			Pod    v1.Pod
			Worker struct{ WaitsFor string }
			Events []v1.Event
		}
	}
	if err := json.Unmarshal([]byte(n.must("describe", "pods", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if first := list.Items[0]; len(list.Items) != 2 || first.Pod.Name != "crash-node-1" || first.Worker.WaitsFor == "" ||
		len(first.Events) != 2 {
		t.Errorf("as JSON: %+v", list)
	}
	if _, _, err := n.run(
		"describe",
		"pod",
		"other",
	); err == nil ||
		err.Error() != `there is no pod "other": there are crash-node-1, kube-system/going-node-1` {
		t.Errorf("a pod that is not there: %v", err)
	}
}

func TestGetWorkers(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	if got := n.must("get", "workers"); got != "There are no workers of pods on this node.\n" {
		t.Errorf("without workers: %q", got)
	}
	n.putPod(pod("default", "crash-node-1", "main"), "file", syncing)
	n.engine.setWorkers(
		&enginev1.Worker{
			PodUid:     "u-1",
			Namespace:  "default",
			Name:       "crash-node-1",
			State:      syncing,
			StateSince: timestamppb.New(ago(time.Hour)),
			NextSyncAt: timestamppb.New(now.Add(20 * time.Second)),
			WaitsFor:   "main: CrashLoopBackOff",
		},
		&enginev1.Worker{
			PodUid:      "u-2",
			Namespace:   "default",
			Name:        "going-node-1",
			State:       terminating,
			StateSince:  timestamppb.New(ago(5 * time.Second)),
			Busy:        true,
			TerminateBy: timestamppb.New(now.Add(25 * time.Second)),
		},
		&enginev1.Worker{
			PodUid:       "u-3",
			Namespace:    "default",
			Name:         "going-node-1",
			State:        syncing,
			Pending:      true,
			BehindPodUid: "u-2",
			WaitsFor:     "the end of the pod u-2 of its name",
		},
		&enginev1.Worker{
			PodUid:     "u-4",
			Namespace:  "kube-system",
			Name:       "ill-node-1",
			State:      syncing,
			StateSince: timestamppb.New(ago(time.Minute)),
			NextSyncAt: timestamppb.New(ago(time.Second)),
			LastError:  "sync the pod:\ncreate the sandbox: no network",
		},
	)
	golden(t, "workers.txt", n.must("get", "workers"))
	golden(t, "workers-wide.txt", n.must("get", "workers", "-o", "wide"))
	golden(t, "workers-name.txt", n.must("get", "worker", "-o", "name", "crash", "kube-system/ill"))
	golden(t, "workers.json", n.must("get", "workers", "-n", "kube-system", "-o", "json"))
	_, _, err := n.run("get", "workers", "none")
	if err == nil ||
		err.Error() != `there is no pod "none": there are crash-node-1, going-node-1, kube-system/ill-node-1` {
		t.Errorf("a worker that is not there: %v", err)
	}
}

func TestWatchedPodsAsObjects(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.SyncLoop)
	n.putPod(pod("default", "hello-node-1", "web"), "file", syncing)
	yaml := n.start("get", "pods", "-w", "-o", "yaml")
	yaml.until(yaml.out, "name: hello-node-1")
	typed := n.start("get", "pods", "-w", "-o", "json", "--output-watch-events")
	typed.until(typed.out, "hello-node-1")
	stop()
	typed.until(typed.errOut, "unreachable")
	yaml.until(yaml.errOut, "unreachable")
	n.putPod(pod("default", "second-node-1", "web"), "file", syncing)
	n.serve(layout.SyncLoop)
	yaml.until(yaml.out, "name: second-node-1")
	typed.until(typed.out, "second-node-1")
	n.putPod(pod("default", "second-node-1", "web"), "file", terminating)
	typed.until(typed.out, "MODIFIED")
	n.engine.pods.Delete("uid-default-second-node-1")
	typed.until(typed.out, "DELETED")
	if err := yaml.stop(); err != nil {
		t.Fatal(err)
	}
	if err := typed.stop(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(yaml.out.String(), "\n---\n"); got < 1 {
		t.Errorf("the objects are not apart:\n%s", yaml.out)
	}
	var seen []string
	for decoder := json.NewDecoder(strings.NewReader(typed.out.String())); decoder.More(); {
		var event struct {
			Type   string
			Object v1.Pod
		}
		if err := decoder.Decode(&event); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, event.Type+" "+event.Object.Name)
	}
	if got, want := strings.Join(
		seen,
		", ",
	), "ADDED hello-node-1, ADDED second-node-1, MODIFIED second-node-1, DELETED second-node-1"; got != want {
		t.Errorf("changes %s, want %s", got, want)
	}
	for _, args := range []string{"get pods --output-watch-events -o json", "get pods -w --output-watch-events"} {
		if _, _, err := n.run(
			strings.Fields(args)...); err == nil ||
			!strings.Contains(err.Error(), "goes with -w and -o json or yaml") {
			t.Errorf("%s: run() error = %v, want an error with %q", args, err, "goes with -w and -o json or yaml")
		}
	}
}
