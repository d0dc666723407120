package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/mount-utils"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// oneConfigMap is a namespace with only the config map "settings".
type oneConfigMap struct{}

func (oneConfigMap) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if name != "settings" {
		return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
	}
	return &v1.ConfigMap{Data: map[string]string{"color": "blue"}}, nil
}

func (oneConfigMap) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

// nodeWithObjects returns a node that supports volumes of config maps and secrets.
func nodeWithObjects(t *testing.T) *node {
	t.Helper()
	return newNode(t, func(config *executor.Config) {
		config.Volumes = newVolumes(t, *config, mount.NewFakeMounter(nil), volumeprojected.Plugins(volumeprojected.Config{
			Mounter: mount.NewFakeMounter(nil), Objects: oneConfigMap{}, Clock: clock.RealClock{},
			Node: func(context.Context) (*v1.Node, error) { return nil, errors.New("there is no node") },
		})...)
	})
}

func TestAVolumeOfAConfigMapIsOnlyRead(t *testing.T) {
	n := nodeWithObjects(t)
	source := v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}},
	}
	pod := withVolume(newPod("a"), source, v1.VolumeMount{})
	n.sync(pod)
	m := n.mountOf(pod, "a", "/data")
	if data, err := os.ReadFile(filepath.Join(m.GetHostPath(), "color")); err != nil || string(data) != "blue" || !m.GetReadonly() || !m.GetSelinuxRelabel() {
		t.Errorf("color is %q, error %v, mounted %v", data, err, m)
	}
}

func TestNothingOfAPodStartsWithoutTheObjectOfAVolume(t *testing.T) {
	n := nodeWithObjects(t)
	source := v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}},
	}
	_, err := n.manager.SyncPod(n.ctx, withVolume(newPod("a"), source, v1.VolumeMount{}), nil)
	notReady := (*volumes.NotReadyError)(nil)
	want := `MountVolume.SetUp failed for volume "data" : configmaps "none" not found`
	if !errors.As(err, &notReady) || notReady.Message != want || n.methods() != "" {
		t.Errorf("error %v, calls %s; want %s", err, n.methods(), want)
	}
}
