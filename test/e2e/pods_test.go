package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestAPodWithAnInitContainerAndTwoContainersBecomesReady(t *testing.T) {
	place(t, "whole.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: whole, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: %[1]q, args: [init]}
  containers:
  - {name: web, image: %[1]q, args: [serve], ports: [{containerPort: 8080}]}
  - name: other
    image: %[1]q
    args: [env]
    env:
    - {name: GREETING, value: "hello from $(POD)"}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
`, image))
	p := await(t, "whole", "Ready", ready)
	if p.Status.Phase != v1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP == "" || p.Status.StartTime == nil {
		t.Errorf("status lacks phase Running, podIP, hostIP or startTime:\n%s", describe(p))
	}
	first := p.Status.InitContainerStatuses[0]
	if first.State.Terminated == nil || first.State.Terminated.ExitCode != 0 ||
		first.State.Terminated.Reason != "Completed" {
		t.Errorf("the init container is not Completed: %+v", first.State)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started ||
			!strings.HasPrefix(c.ContainerID, "containerd://") || c.RestartCount != 0 {
			t.Errorf("container %s is not running and ready with an id: %+v", c.Name, c)
		}
		if started, finished := c.State.Running, first.State.Terminated; started != nil &&
			started.StartedAt.Time.Before(finished.FinishedAt.Time) {
			t.Errorf("container %s started at %v, before the init container ended at %v", c.Name, started.StartedAt, finished.FinishedAt)
		}
	}

	t.Run("its output is in a log in CRI format and in quartet logs", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(node.Layout.PodLogs(), "e2e_whole-*", "web", "0.log"))
		if err != nil || len(files) != 1 {
			t.Fatalf("want one log file, got %v (%v)", files, err)
		}
		line := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+ (stdout|stderr) [FP] .+`)
		awaitThat(t, "a line in CRI format", func() bool {
			data, err := os.ReadFile(files[0])
			return err == nil && line.Match(data)
		})
		if out := quartet(t, "logs", "e2e/"+p.Name, "-c", "first"); strings.TrimSpace(out) == "" {
			t.Error("quartet logs prints nothing of the init container")
		}
	})
	t.Run("quartet get shows it in every format", func(t *testing.T) {
		if out := quartet(t, "get", "pods"); !regexp.MustCompile(regexp.QuoteMeta(p.Name) + `\s+2/2\s+Running\s+0\s`).MatchString(out) {
			t.Errorf("get pods does not show it as 2/2 Running:\n%s", out)
		}
		for format, want := range map[string]string{"wide": p.Status.PodIP, "json": string(p.UID), "yaml": "uid: ", "name": "pod/" + p.Name} {
			if out := quartet(t, "get", "pods", "-o", format); !strings.Contains(out, want) {
				t.Errorf("get pods -o %s lacks %q:\n%s", format, want, out)
			}
		}
		// The status has additional text when the disk is nearly full.
		if out := quartet(t, "get", "node"); !regexp.MustCompile(`\sReady[\s,]`).MatchString(out) {
			t.Errorf("get node does not say Ready:\n%s", out)
		}
	})
	t.Run("env fields and $(VAR) are resolved", func(t *testing.T) {
		awaitThat(t, "the environment in the log", func() bool {
			out := quartet(t, "logs", "e2e/"+p.Name, "-c", "other")
			return strings.Contains(out, "POD="+p.Name)
		})
	})
}

func TestABadManifestHarmsNothingAndShowsInSources(t *testing.T) {
	place(t, "good.yaml", manifest("good", 1, "sleep"))
	before := containerIDs(await(t, "good", "Ready", ready))
	place(t, "bad.yaml", strings.Replace(manifest("bad", 1, "sleep"), "containers:", "contaners:", 1))
	awaitThat(t, "the error in get sources", func() bool {
		out := quartet(t, "get", "sources")
		return strings.Contains(out, "bad.yaml") && strings.Contains(out, "contaners")
	})
	if p := await(t, "good", "Ready", ready); fmt.Sprint(containerIDs(p)) != fmt.Sprint(before) {
		t.Error("the good pod was restarted")
	}
	place(t, "bad.yaml", manifest("bad", 1, "sleep"))
	await(t, "bad", "Ready once its manifest is mended", ready)
	if out := quartet(t, "get", "sources"); strings.Contains(out, "bad.yaml") {
		t.Errorf("the mended error is still shown:\n%s", out)
	}
}

func TestAHalfWrittenUpdateKeepsTheLastGoodVersion(t *testing.T) {
	place(t, "half.yaml", manifest("half", 1, "sleep"))
	before := containerIDs(await(t, "half", "Ready", ready))
	place(t, "half.yaml", manifest("half", 1, "sleep")[:60])
	awaitThat(t, "the error in get sources", func() bool { return strings.Contains(quartet(t, "get", "sources"), "half.yaml") })
	p := await(t, "half", "listed", func(p *v1.Pod) bool { return p != nil })
	if !ready(p) || fmt.Sprint(containerIDs(p)) != fmt.Sprint(before) {
		t.Errorf("the pod of the last good version does not run on:\n%s", describe(p))
	}
}

func TestAnUpdateRestartsThePodWithTheNewSpec(t *testing.T) {
	place(t, "updated.yaml", manifest("updated", 1, "sleep"))
	before := await(t, "updated", "Ready", ready)
	place(t, "updated.yaml", manifest("updated", 1, "serve"))
	after := await(t, "updated", "Ready with the new spec", func(p *v1.Pod) bool {
		return ready(p) && p.Spec.Containers[0].Args[0] == "serve" && p.UID != before.UID
	})
	if fmt.Sprint(containerIDs(after)) == fmt.Sprint(containerIDs(before)) {
		t.Error("the container is still the old one")
	}
}

func TestADeletedPodStopsWithinItsGracePeriod(t *testing.T) {
	place(t, "obedient.yaml", manifest("obedient", 120, "sleep"))
	place(t, "stubborn.yaml", manifest("stubborn", 3, "sleep", "-ignore-term"))
	for _, name := range []string{"obedient", "stubborn"} {
		p := await(t, name, "Ready", ready)
		awaitThat(t, name+" has said that it is up, and so handles signals", func() bool {
			return strings.Contains(quartet(t, "logs", "e2e/"+p.Name), "hello")
		})
	}
	begin := time.Now()
	takeAway(t, "obedient.yaml")
	takeAway(t, "stubborn.yaml")
	awaitGone(t, "obedient")
	if took := time.Since(begin); took > 60*time.Second {
		t.Errorf("a pod that ends on SIGTERM took %v to stop", took)
	}
	awaitGone(t, "stubborn")
	if took := time.Since(begin); took < 3*time.Second || took > 25*time.Second {
		t.Errorf("a pod that ignores SIGTERM took %v to stop, want its grace period of 3 s", took)
	}
}

func TestACrashingContainerBacksOffAndCountsItsRestarts(t *testing.T) {
	place(t, "crashing.yaml", manifest("crashing", 1, "crash", "-after", "100ms", "-code", "7"))
	p := await(t, "crashing", "in CrashLoopBackOff after a restart", func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		c := p.Status.ContainerStatuses[0]
		return c.RestartCount >= 1 && c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
	})
	last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 7 || last.Reason != "Error" {
		t.Errorf("the last state does not say exit code 7 and Error: %+v", last)
	}
	if out := quartet(t, "get", "pods"); !regexp.MustCompile(regexp.QuoteMeta(p.Name) + `\s+0/1\s+CrashLoopBackOff\s+[1-9]`).MatchString(out) {
		t.Errorf("get pods does not show the back-off and the restarts:\n%s", out)
	}
}

func TestAFinishedPodIsNotStartedAgain(t *testing.T) {
	place(t, "finished.yaml", strings.Replace(manifest("finished", 1, "init"), "spec:", "spec:\n  restartPolicy: Never", 1))
	done := func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded }
	before := containerIDs(await(t, "finished", "Succeeded", done))
	kill(t, "syncloop")
	awaitRestart(t, "syncloop")
	if after := containerIDs(await(t, "finished", "still Succeeded after a restart of syncloop", done)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers went from %v to %v, want %v", before, after, fmt.Sprint(before))
	}
}

func TestAMissingImageIsInTheStatus(t *testing.T) {
	place(t, "absent.yaml", strings.Replace(strings.Replace(manifest("absent", 1, "sleep"), image, "quartet.local/absent:1", 1), "args:", "imagePullPolicy: Never, args:", 1))
	await(t, "absent", "waiting with ErrImageNeverPull", func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		w := p.Status.ContainerStatuses[0].State.Waiting
		return w != nil && w.Reason == "ErrImageNeverPull"
	})
}
