package executor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/fakecri"
)

// mountOf returns the mount of a container at a path; nil if there is none.
func (n *node) mountOf(pod *v1.Pod, name, path string) *runtimeapi.Mount {
	n.t.Helper()
	response, err := n.runtime.ContainerStatus(n.ctx, n.id(pod, name), false)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range response.GetStatus().GetMounts() {
		if m.GetContainerPath() == path {
			return m
		}
	}
	return nil
}

func withVolume(pod *v1.Pod, source v1.VolumeSource, mount v1.VolumeMount) *v1.Pod {
	mount.Name = "data"
	if mount.MountPath == "" {
		mount.MountPath = "/data"
	}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: source}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{mount}
	}
	return pod
}

func TestAnEmptyDirIsSharedSurvivesARestartAndGoesWithThePod(t *testing.T) {
	n := newNode(t)
	pod := withVolume(newPod("a", "b"), v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, v1.VolumeMount{})
	n.sync(pod)
	dir := n.mountOf(pod, "a", "/data").GetHostPath()
	if other := n.mountOf(pod, "b", "/data").GetHostPath(); other != dir {
		t.Fatalf("two folders: %s and %s", dir, other)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o777 {
		t.Fatalf("Stat() = %v, %v, want Mode.Perm 0o777", info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.cri.Exit(n.id(pod, "a"), 1)
	n.sync(pod)
	if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after the pod: %v", err)
	}
}

func TestHostPaths(t *testing.T) {
	root := t.TempDir()
	file, dir := filepath.Join(root, "file"), filepath.Join(root, "dir")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		kind v1.HostPathType
		path string
		ok   bool
	}{
		{v1.HostPathUnset, filepath.Join(root, "none"), true},
		{v1.HostPathDirectory, dir, true},
		{v1.HostPathDirectory, file, false},
		{v1.HostPathDirectory, filepath.Join(root, "none"), false},
		{v1.HostPathDirectoryOrCreate, filepath.Join(root, "new", "dir"), true},
		{v1.HostPathFile, file, true},
		{v1.HostPathFile, dir, false},
		{v1.HostPathFileOrCreate, filepath.Join(root, "newfile"), true},
		{v1.HostPathSocket, file, false},
		{v1.HostPathCharDev, "/dev/null", true},
		{v1.HostPathBlockDev, "/dev/null", false},
	} {
		t.Run(string(test.kind)+" "+filepath.Base(test.path), func(t *testing.T) {
			n := newNode(t)
			source := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: test.path, Type: &test.kind}}
			both := v1.MountPropagationBidirectional
			pod := withVolume(newPod("a"), source, v1.VolumeMount{ReadOnly: true, MountPropagation: &both})
			result, err := n.manager.SyncPod(n.ctx, pod, nil)
			if (err == nil) != test.ok {
				t.Fatalf("reasons %v, error %v", result.Reasons, err)
			}
			if !test.ok && (!strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "data" : hostPath type check failed: `) || result.SandboxError == nil || n.methods() != "") {
				t.Fatalf("error %v, calls %s", err, n.methods())
			}
			if !test.ok {
				return
			}
			m := n.mountOf(pod, "a", "/data")
			if m.GetHostPath() != test.path || !m.GetReadonly() ||
				m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL || m.GetSelinuxRelabel() {
				t.Errorf("mounted %v, want HostPath %v, Readonly true, Propagation %v and SelinuxRelabel false",
					m, test.path, runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL)
			}
		})
	}
}

func TestAValueComesFromAFileThatAnInitContainerHasWritten(t *testing.T) {
	n := newNode(t)
	n.cri.OnStart(func(c fakecri.Container) (int32, bool) { return 0, strings.HasPrefix(c.Name, "init-") })
	pod := newPod("init-1", "a")
	pod.Spec.Volumes = []v1.Volume{{Name: "env", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.InitContainers[0].VolumeMounts = []v1.VolumeMount{{Name: "env", MountPath: "/env"}}
	ref := &v1.FileKeySelector{VolumeName: "env", Path: "vars", Key: "TOKEN"}
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "TOKEN", ValueFrom: &v1.EnvVarSource{FileKeyRef: ref}}}
	n.sync(pod)
	folder := n.created(pod, "init-1").GetMounts()[0].GetHostPath()
	outside := filepath.Join(t.TempDir(), "secret")
	for _, path := range []string{outside, filepath.Join(folder, "vars")} {
		if err := os.WriteFile(path, []byte("TOKEN='x'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	ref.Path = "link"
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err == nil || result.Reasons["a"].Reason != "CreateContainerConfigError" || !strings.Contains(err.Error(), "link") {
		t.Errorf("a link leads out of the volume: reasons %v, error %v", result.Reasons, err)
	}
	ref.Path = "vars"
	n.sync(pod)
	if env := n.created(pod, "a").GetEnvs(); len(env) != 1 || string(env[0].GetValue()) != "x" {
		t.Errorf("environment %v, want exactly one and env[0].Value %q", env, "x")
	}
}

// TestAFileOfVariablesThatBecomesAPipeBlocksNothing replaces the file by a pipe and back all the time. Each try either
// reads the file or fails.
func TestAFileOfVariablesThatBecomesAPipeBlocksNothing(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	pod.Spec.Volumes = []v1.Volume{{Name: "env", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "env", MountPath: "/env"}}
	n.sync(pod)
	folder := n.created(pod, "a").GetMounts()[0].GetHostPath()
	vars, pipe := filepath.Join(folder, "vars"), filepath.Join(folder, "pipe")
	if err := errors.Join(os.WriteFile(vars, []byte("TOKEN='x'\n"), 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended, exchanging := make(chan struct{}), sync.WaitGroup{}
	exchanging.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, vars, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE)
			}
		}
	})
	defer exchanging.Wait()
	defer close(ended)
	outcomes := make(chan error, 1)
	const tries = 3000
	go func() {
		for range tries {
			text, err := n.manager.EnvFile(pod, "env", "vars")
			if err == nil && text != "TOKEN='x'\n" {
				err = fmt.Errorf("it has %q", text)
			} else if err != nil && strings.Contains(err.Error(), "must be a file") {
				err = nil
			}
			outcomes <- err
		}
	}()
	for i := range tries {
		select {
		case err := <-outcomes:
			if err != nil {
				t.Fatal(err)
			}
		case <-n.ctx.Done():
			t.Fatalf("try %d blocks", i)
		}
	}
}

func TestUnsupportedVolumesStartNothingAndSayWhy(t *testing.T) {
	for want, pod := range map[string]*v1.Pod{
		`volume "data" of kind persistentVolumeClaim: it is not supported yet`: withVolume(newPod("a"),
			v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}, v1.VolumeMount{}),
		`volume "data" of kind emptyDir: there is no medium "Disk"`: withVolume(newPod("a"),
			v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: "Disk"}}, v1.VolumeMount{}),
	} {
		n := newNode(t)
		result, err := n.manager.SyncPod(n.ctx, pod, nil)
		var unsupported *executor.UnsupportedError
		if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), want) || result.SandboxError == nil {
			t.Errorf("result %+v, error %v; want %q", result, err, want)
		}
		if got := n.methods(); got != "" {
			t.Errorf("calls %s, want an empty text", got)
		}
	}
}

func imageVolume(reference string, policy v1.PullPolicy) v1.VolumeSource {
	return v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference, PullPolicy: policy}}
}

func TestAnImageIsMountedByTheRuntimeAndPulledByPolicy(t *testing.T) {
	n := newNode(t)
	pod := withVolume(newPod("a", "b"), imageVolume("volume:1", v1.PullIfNotPresent), v1.VolumeMount{SubPath: "models/small"})
	n.sync(pod)
	pulled := 0
	for _, call := range n.cri.Calls() {
		if call.Method == "PullImage" {
			pulled++
		}
	}
	if pulled != 1 {
		t.Errorf("pulled %d times for two containers, want 1", pulled)
	}
	for _, name := range []string{"a", "b"} {
		config := n.created(pod, name)
		var mount *runtimeapi.Mount
		for _, m := range config.GetMounts() {
			if m.GetContainerPath() == "/data" {
				mount = m
			}
		}
		if mount.GetImage().GetImage() != "sha256:volume:1" || mount.GetImage().GetUserSpecifiedImage() != "volume:1" || mount.GetImageSubPath() != "models/small" || mount.GetHostPath() != "" {
			t.Errorf("%s: mounted %v, want Image.Image %q, Image.UserSpecifiedImage %q, ImageSubPath %q and no HostPath",
				name, mount, "sha256:volume:1", "volume:1", "models/small")
		}
		if got := config.GetAnnotations()[podlabels.ImageVolumes]; got != "sha256:volume:1" {
			t.Errorf("%s: the images that are kept for it: %q, want %q", name, got, "sha256:volume:1")
		}
	}
}

func TestAContainerWaitsForTheImageOfAVolumeAsForItsOwn(t *testing.T) {
	n := newNode(t)
	pod := withVolume(newPod("a", "b"), imageVolume("volume:1", v1.PullNever), v1.VolumeMount{})
	pod.Spec.Containers[1].VolumeMounts = nil
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if err == nil || result.SandboxError != nil || result.Reasons["a"].Reason != "ErrImageNeverPull" || !strings.Contains(result.Reasons["a"].Message, "volume:1") {
		t.Errorf("reasons %v, error %v", result.Reasons, err)
	}
	n.want(pod, "sandbox-0:ready b-0:running") // b does not mount it
	pod.Spec.Volumes[0].Image.PullPolicy = v1.PullIfNotPresent
	n.cri.Fail("PullImage", "", 1, errors.New("no such image"))
	result, err = n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err == nil || result.Reasons["a"].Reason != "ErrImagePull" || result.RetryAfter <= 0 {
		t.Errorf("reasons %v, again in %v, error %v", result.Reasons, result.RetryAfter, err)
	}
	result, err = n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err != nil || result.Reasons["a"].Reason != "ImagePullBackOff" {
		t.Errorf("reasons %v, error %v, want Reason %q", result.Reasons, err, "ImagePullBackOff")
	}
}
