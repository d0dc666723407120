package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podlabels"
)

func TestPartsOfVolumesAreMountedByPathsOfTheSpecAndOfTheEnvironment(t *testing.T) {
	n := newNode(t)
	pod := withVolume(newPod("a"), v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, v1.VolumeMount{SubPath: "logs/$(POD)"})
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "image", VolumeSource: imageVolume("volume:1", v1.PullIfNotPresent)})
	c := &pod.Spec.Containers[0]
	c.Env = []v1.EnvVar{{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	c.VolumeMounts = append(c.VolumeMounts,
		v1.VolumeMount{Name: "data", MountPath: "/mine", SubPathExpr: "of/$(POD)"},
		v1.VolumeMount{Name: "image", MountPath: "/image", SubPathExpr: "of/$(POD)"},
	)
	n.sync(pod)
	mounts := n.created(pod, "a").GetMounts()
	folder := filepath.Join(n.config.RootDir, "pods/u-1")
	for i, path := range []string{"logs/$(POD)", "of/web"} {
		at := mounts[i].GetHostPath()
		if want := filepath.Join(folder, "volume-subpaths/data/a", string(rune('0'+i))); at != want || !mounts[i].GetSelinuxRelabel() {
			t.Errorf("%s: mounted %v, want at %v and SelinuxRelabel true", path, mounts[i], want)
		}
		if to, err := os.Readlink(at); to != filepath.Join(folder, "volumes/kubernetes.io~empty-dir/data", path) {
			t.Errorf("%s: mounted is %s, %v, want %s",
				path, to, err, filepath.Join(folder, "volumes/kubernetes.io~empty-dir/data", path))
		}
	}
	if image := mounts[2]; image.GetImageSubPath() != "of/web" || image.GetHostPath() != "" {
		t.Errorf("mounted %v, want ImageSubPath %q and no HostPath", image, "of/web")
	}
}

func TestAPathThatMayNotBeMountedKeepsItsContainerAndSaysSo(t *testing.T) {
	outside := t.TempDir()
	for name, test := range map[string]struct {
		mount v1.VolumeMount
		want  string
	}{
		"a link that leads out":           {v1.VolumeMount{SubPath: "link"}, `failed to prepare subPath for volumeMount "data" of container "a"`},
		"a new folder where a link leads": {v1.VolumeMount{SubPath: "link/new"}, `failed to create subPath directory for volumeMount "data" of container "a"`},
		"a variable that there is not":    {v1.VolumeMount{SubPathExpr: "$(NONE)"}, "missing value for NONE"},
		"up, by a variable":               {v1.VolumeMount{SubPathExpr: "a/$(UP)"}, "unable to provision SubPath `a/..`: must not contain '..'"},
		"an absolute path, by a variable": {v1.VolumeMount{SubPathExpr: "$(ROOT)"}, "error SubPath `/` must not be an absolute path"},
		"recursive, which there is not":   {rro(v1.RecursiveReadOnlyEnabled, true), `failed to resolve recursive read-only mode: volume "data" requested recursive read-only mode, but it is not supported by the runtime`},
		"recursive, but not read-only":    {rro(v1.RecursiveReadOnlyIfPossible, false), `failed to resolve recursive read-only mode: volume "data" requested recursive read-only mode, but it is not read-only`},
		"recursive, but with propagation": {propagated(rro(v1.RecursiveReadOnlyIfPossible, true)), `failed to resolve recursive read-only mode: volume "data" requested recursive read-only mode, but it is not compatible with propagation "HostToContainer"`},
	} {
		t.Run(name, func(t *testing.T) {
			n, events := newRecorded(t)
			host := t.TempDir()
			if err := os.Symlink(outside, filepath.Join(host, "link")); err != nil {
				t.Fatal(err)
			}
			pod := withVolume(newPod("a", "b"), v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}, test.mount)
			pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "UP", Value: ".."}, {Name: "ROOT", Value: "/"}}
			pod.Spec.Containers[1].VolumeMounts = nil
			result, err := n.manager.SyncPod(n.ctx, pod, nil)
			if got := result.Reasons["a"]; err == nil || got.Reason != "CreateContainerConfigError" || got.Message != test.want {
				t.Errorf("reasons %v, error %v", result.Reasons, err)
			}
			if got := events.take(); !strings.Contains(got, "Warning Failed [a] Error: "+test.want) || strings.Contains(got, outside) {
				t.Errorf("events\n%s\nwant text with %q and without %q", got, "Warning Failed [a] Error: "+test.want, outside)
			}
			n.want(pod, "sandbox-0:ready b-0:running")
			if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
				t.Errorf("outside are %v, %v, want none", entries, err)
			}
		})
	}
}

func rro(mode v1.RecursiveReadOnlyMode, readOnly bool) v1.VolumeMount {
	return v1.VolumeMount{ReadOnly: readOnly, RecursiveReadOnly: &mode}
}

func propagated(m v1.VolumeMount) v1.VolumeMount {
	m.MountPropagation = ptr.To(v1.MountPropagationHostToContainer)
	return m
}

func TestWhatIsRecursivelyReadOnlyIsForTheHandlerToHave(t *testing.T) {
	for _, test := range []struct {
		handler string
		mode    v1.RecursiveReadOnlyMode
		want    bool
	}{
		{"runc", v1.RecursiveReadOnlyEnabled, true},
		{"runc", v1.RecursiveReadOnlyIfPossible, true},
		{"runc", v1.RecursiveReadOnlyDisabled, false},
		{"", v1.RecursiveReadOnlyIfPossible, false},
	} {
		n := newNode(t)
		pod := withVolume(newPod("a"), v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, rro(test.mode, true))
		if test.handler != "" {
			pod.Spec.RuntimeClassName = &test.handler
		}
		n.sync(pod)
		config, noted := n.created(pod, "a"), ""
		if test.want {
			noted = "0"
		}
		mount := config.GetMounts()[0]
		if mount.GetRecursiveReadOnly() != test.want || !mount.GetReadonly() ||
			config.GetAnnotations()[podlabels.RecursiveReadOnly] != noted {
			t.Errorf("%s by %q: mounted %v, noted %v", test.mode, test.handler, mount, config.GetAnnotations())
		}
	}
}

func TestAPrivateMountOfTheNodeSaysWhatToDo(t *testing.T) {
	for mountPoint, named := range map[string]string{"/mnt": "/mnt", "/root/pods/u-1/volume-subpaths/data/a/0": "MOUNT-OF-THE-VOLUME"} {
		n, events := newRecorded(t)
		pod := withVolume(newPod("a"), v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/mnt/data"}}, propagated(v1.VolumeMount{}))
		n.cri.Fail("CreateContainer", "", 1, status.Error(codes.Unknown, `failed to generate spec: path "/mnt/data" is mounted on "`+mountPoint+`" but it is not a shared or slave mount`))
		result, err := n.manager.SyncPod(n.ctx, pod, nil)
		advice := `is not a shared or slave mount; run "mount --make-rshared ` + named + `" on the node at each of its starts, or leave mountPropagation out`
		if got := result.Reasons["a"]; err == nil || got.Reason != "CreateContainerError" || !strings.HasSuffix(got.Message, advice) || strings.Contains(got.Message, "rpc error") {
			t.Errorf("reasons %v, error %v", result.Reasons, err)
		}
		if got := events.take(); !strings.Contains(got, advice) {
			t.Errorf("events\n%s\nwant text with %q", got, advice)
		}
		if methods := strings.Fields(n.methods()); slices.Contains(methods, "StartContainer") {
			t.Errorf("calls %v, want %q not among them", methods, "StartContainer")
		}
	}
}
