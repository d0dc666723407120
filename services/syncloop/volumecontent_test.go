package syncloop

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/test/require"
)

// putConfigMap makes configmux serve a ConfigMap with one key.
func (m *machine) putConfigMap(namespace, name, key, text string) {
	m.t.Helper()
	data, err := (&v1.ConfigMap{Data: map[string]string{key: text}}).Marshal()
	if err != nil {
		m.t.Fatal(err)
	}
	m.putObject(&configv1.Object{Kind: "ConfigMap", Namespace: namespace, Name: name, Object: data})
}

// putSecret makes configmux serve a Secret with one key.
func (m *machine) putSecret(namespace, name, key, text string) {
	m.t.Helper()
	data, err := (&v1.Secret{Data: map[string][]byte{key: []byte(text)}}).Marshal()
	if err != nil {
		m.t.Fatal(err)
	}
	m.putObject(&configv1.Object{Kind: "Secret", Namespace: namespace, Name: name, Object: data})
}

func (m *machine) putObject(object *configv1.Object) {
	m.configmux.objects.Put(object.GetKind()+"/"+object.GetNamespace()+"/"+object.GetName(), &configv1.WatchObjectsResponse{Object: object})
}

func TestVolumesWaitForTheirObjectsAndFollowThem(t *testing.T) {
	require.Root(t, "mounting")
	m := newMachine(t)
	m.configmux.haveObjects()
	pod := withVolume(newPod("u1", "web", "a"), "settings", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}})
	pod = withVolume(pod, "login", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login"}})
	m.put(pod)
	m.configmux.speak()
	m.start()
	m.eventually("web's status names a missing object", func() bool {
		pod := m.pod("u1")
		return pod != nil && pod.Status.Phase == v1.PodPending && pod.Status.Reason == "FailedMount" &&
			strings.Contains(pod.Status.Message, `MountVolume.SetUp failed for volume "`)
	})
	m.putSecret(pod.Namespace, "login", "password", "hunter2")
	m.eventually("web's status names the other missing object", func() bool {
		return m.pod("u1").Status.Message ==
			`MountVolume.SetUp failed for volume "settings" : configmap "settings" not found`
	})
	m.putConfigMap(pod.Namespace, "settings", "color", "blue")
	m.eventually("web is ready", m.ready("u1"))
	volumes := filepath.Join(m.cfg.RootDir, "pods/u1/volumes")
	holds := func(path, want string) func() bool {
		return func() bool {
			got, err := os.ReadFile(filepath.Join(volumes, path))
			return err == nil && string(got) == want
		}
	}
	m.eventually("the volumes have what the objects have", func() bool {
		return holds("kubernetes.io~configmap/settings/color", "blue")() && holds("kubernetes.io~secret/login/password", "hunter2")()
	})
	m.putConfigMap(pod.Namespace, "settings", "color", "red")
	m.putSecret(pod.Namespace, "login", "password", "hunter3")
	m.eventually("the volumes have what the objects have now", func() bool {
		return holds("kubernetes.io~configmap/settings/color", "red")() && holds("kubernetes.io~secret/login/password", "hunter3")()
	})
	m.configmux.level.Delete("u1")
	m.eventually("nothing is left", func() bool {
		left, err := os.ReadDir(filepath.Join(m.cfg.RootDir, "pods"))
		return err == nil && len(left) == 0 && len(m.pods()) == 0
	})
}
