package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestAPodThatCannotRunSaysWhy places pods that cannot run, and compares their status and events.
func TestAPodThatCannotRunSaysWhy(t *testing.T) {
	t.Parallel()
	secret := folder(t)
	if err := os.WriteFile(filepath.Join(secret, "program"), []byte("#!/hello init\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	// Nothing listens there, so the connection is refused at once, with or without a network.
	const absent = "127.0.0.1:1/absent:1"
	for name, test := range map[string]struct {
		change func(*v1.Pod)
		status func(*v1.Pod) bool
		event  string
		parts  []string
		also   func(*testing.T, *v1.Pod)
	}{
		"image-missing": {
			change: withImage(absent, v1.PullIfNotPresent), status: waits("ErrImagePull", absent, "connection refused"),
			event: "Failed", parts: []string{"Failed to pull image", absent, "connection refused"},
		},
		"image-missing-later": {
			change: withImage(absent, v1.PullAlways), status: waits("ImagePullBackOff", "Back-off pulling image", absent, "connection refused"),
			event: "Failed", parts: []string{"Error: ErrImagePull"},
		},
		"image-name-invalid": {
			change: withImage("Not A Name", v1.PullIfNotPresent), status: waits("InvalidImageName", "Not A Name"),
			event: "InspectFailed", parts: []string{"Not A Name"},
		},
		"command-missing": {
			change: withCommand("/no/such/program"), status: failedToStart("/no/such/program", "no such file or directory"),
			event: "Failed", parts: []string{"/no/such/program", "no such file or directory"},
		},
		"not-executable": {
			change: withCommand("/etc/hosts"), status: failedToStart("/etc/hosts", "permission denied"),
			event: "Failed", parts: []string{"/etc/hosts", "permission denied"},
		},
		"user-without-access": {
			change: func(p *v1.Pod) {
				withCommand("/secret/program")(p)
				p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To[int64](1234)}
				none := &v1.Capabilities{Drop: []v1.Capability{"ALL"}}
				p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Capabilities: none}
				p.Spec.Volumes = []v1.Volume{{Name: "secret", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: secret}}}}
				p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "secret", MountPath: "/secret"}}
			},
			status: failedToStart("/secret/program", "permission denied"), event: "Failed", parts: []string{"/secret/program", "permission denied"},
		},
		"user-not-to-be-root": {
			change: func(p *v1.Pod) {
				p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
			},
			status: waits("CreateContainerConfigError", "runAsNonRoot"), event: "Failed", parts: []string{"Error: ", "runAsNonRoot"},
		},
		"out-of-memory": {
			change: func(p *v1.Pod) {
				withArgs("grow")(p)
				p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("48Mi")}
			},
			status: func(p *v1.Pod) bool {
				last := only(p).LastTerminationState.Terminated
				return last != nil && last.Reason == "OOMKilled" && last.ExitCode == 137 && only(p).RestartCount > 0
			},
			event: "BackOff", parts: []string{"Back-off restarting failed container main"}, also: killedForItsOwnLimit,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place(t, name, test.change)
			p := await(t, name, "said not to run", test.status)
			if p.Status.Phase == v1.PodFailed {
				t.Errorf("the pod has failed for good:\n%s", describe(t, p))
			}
			awaitEvent(t, name, v1.EventTypeWarning, test.event, test.parts...)
			if test.also != nil {
				test.also(t, p)
			}
		})
	}
}

// killedForItsOwnLimit checks that the kernel's log of the kill is read where that is permitted, and is not taken for a
// shortage of memory of the machine.
func killedForItsOwnLimit(t *testing.T, p *v1.Pod) {
	t.Helper()
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		t.Logf("the kernel's log is not read: %v", err)
		return
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	awaitThat(t, "the log of syncloop names the process", func() bool {
		said, _ := os.ReadFile(node.Layout.NodeLog()) // it is read again
		for line := range strings.Lines(string(said)) {
			if strings.Contains(line, "its cgroup has reached its limit of memory") && strings.Contains(line, "process=hello") && strings.Contains(line, string(p.UID)) {
				return true
			}
		}
		return false
	})
	told, err := events(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, e := range told {
		if e.Reason == "SystemOOM" && strings.Contains(e.Message, "victim process: hello") {
			t.Errorf("the node tells a container's own limit as %s: %s", e.Reason, e.Message)
		}
	}
}

// failedToStart matches a pod whose container was created but could not be started, and reports the next attempt.
func failedToStart(parts ...string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		last := only(p).LastTerminationState.Terminated
		w := only(p).State.Waiting
		return w != nil && w.Reason == "CrashLoopBackOff" && last != nil && last.Reason == "StartError" && last.ExitCode == 128 && hasAll(last.Message, parts)
	}
}
