package volumeprojected_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

func TestEveryKindIsWhereAKubeletHasItAndGoesAgain(t *testing.T) {
	for name, test := range map[string]struct {
		source v1.VolumeSource
		plugin string
		disk   bool
		want   []string
	}{
		"configMap":   {configMap("settings", false), "kubernetes.io~configmap", true, []string{"a", "1", "b", "2"}},
		"secret":      {secret("login"), "kubernetes.io~secret", false, []string{"password", hidden}},
		"downwardAPI": {v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: downward("labels", "metadata.labels")}}, "kubernetes.io~downward-api", false, []string{"labels", `app="web"`}},
		"projected": {projected(
			v1.VolumeProjection{
				ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}},
			},
			v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "login"}}},
			v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.cpu", Divisor: resource.MustParse("1")}},
			}}},
			tokenFor("vault"),
		), "kubernetes.io~projected", false, []string{"a", "1", "b", "2", "password", hidden, "cpu", "3", "token", hidden + ` of web for "vault", 600 s`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.objects.putConfigMap("settings", false, "a", "1", "b", "2")
			r.objects.putSecret("login", false, "password", hidden)
			v := r.volume(test.source)
			if v.plugin.Name() != test.plugin || !v.plugin.Refreshes() {
				t.Errorf("plugin %s, refreshes %v", v.plugin.Name(), v.plugin.Refreshes())
			}
			v.mustSetUp()
			v.has(test.want...)
			kinds, options := v.mounted()
			switch {
			case test.disk && len(kinds) > 0:
				t.Errorf("%v is mounted", kinds)
			case !test.disk && (!slices.Equal(kinds, []string{"tmpfs"}) || !strings.Contains(options, "noswap")):
				t.Errorf("%v is mounted with %s", kinds, options)
			}
			before := inodes(t, v.Dir)
			r.restart()
			v.mustSetUp()
			if again := inodes(t, v.Dir); !reflect.DeepEqual(before, again) {
				t.Errorf("after a restart there is %v, before %v", again, before)
			}
			if kinds, _ := v.mounted(); !test.disk && len(kinds) != 1 {
				t.Errorf("after a restart %v is mounted", kinds)
			}
			for range 2 { // the second removal is a no-op
				if err := v.tearDown(); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Lstat(v.Dir); !os.IsNotExist(err) {
					t.Errorf("the folder is left: %v", err)
				}
			}
			if err := v.plugin.TearDown(context.Background(), filepath.Join(r.dir, "none/volumes/x/v")); err != nil {
				t.Errorf("of a pod that left nothing: %v", err)
			}
		})
	}
}

// inodes returns the inode numbers of everything below a directory.
func inodes(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		all[p] = info.Sys().(*syscall.Stat_t).Ino
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestChangedObjectsAreMountedAndFailuresKeepTheContent(t *testing.T) {
	r := newRig(t)
	r.objects.putConfigMap("settings", false, "a", "1", "b", "2")
	v := r.volume(configMap("settings", false))
	v.mustSetUp()
	r.objects.putConfigMap("settings", false, "a", "one", "c", "3")
	v.mustSetUp()
	v.has("a", "one", "c", "3")

	r.objects.failing(errors.New("no answer"))
	if err := v.setUp(); err == nil || err.Error() != "config map shop/settings: no answer" {
		t.Errorf("nobody answers: %v", err)
	}
	v.has("a", "one", "c", "3")
	r.objects.failing(nil)
	r.objects.remove("configmaps", "settings")
	if err := v.setUp(); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("the object is gone: %v", err)
	}
	v.has("a", "one", "c", "3")
	v.Volume.ConfigMap.Optional = ptr(true)
	v.mustSetUp()
	v.has()
}

func TestNothingIsMadeBeforeTheObjectIsThere(t *testing.T) {
	r := newRig(t)
	v := r.volume(secret("login"))
	if err := v.setUp(); err == nil {
		t.Fatal("there is no secret, and no error")
	}
	if _, err := os.Lstat(v.Dir); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v, want fs.ErrNotExist", err)
	}
	r.objects.putSecret("login", false, "password", hidden)
	v.mustSetUp()
	v.has("password", hidden)
}

func TestAnImmutableObjectIsAskedForOnce(t *testing.T) {
	r := newRig(t)
	r.objects.putConfigMap("fixed", true, "a", "1")
	r.objects.putSecret("fixed", true, "password", hidden)
	both := r.volume(projected(
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "fixed"}}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "fixed"}}},
	))
	for range 3 {
		both.mustSetUp()
	}
	r.objects.failing(errors.New("no answer"))
	both.mustSetUp()
	if maps, secrets := r.objects.times("configmaps", "fixed"), r.objects.times("secrets", "fixed"); maps != 1 || secrets != 1 {
		t.Errorf("asked %d and %d times, want 1 and 1", maps, secrets)
	}
	both.has("a", "1", "password", hidden)

	r.objects.failing(nil)
	if err := both.tearDown(); err != nil {
		t.Fatal(err)
	}
	r.objects.putConfigMap("fixed", true, "a", "made anew")
	both.mustSetUp()
	both.has("a", "made anew", "password", hidden)
}

func TestAGroupMayReadAndATokenIsThePodsOwn(t *testing.T) {
	r := newRig(t)
	r.objects.putSecret("login", false, "password", hidden)
	v := r.volume(projected(v1.VolumeProjection{Secret: &v1.SecretProjection{
		LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Items: []v1.KeyToPath{{Key: "password", Path: "sub/password", Mode: ptr[int32](0o400)}},
	}}, tokenFor("")))
	v.FSGroup = ptr[int64](5678)
	v.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: v.FSGroup, RunAsUser: ptr[int64](1234)}
	v.mustSetUp()
	for p, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
	}{
		".": {0o3777, 0, 5678}, "sub/": {0o2755, 0, 5678}, "sub/password": {0o440, 0, 5678}, "token": {0o640, 1234, 5678},
	} {
		var got unix.Stat_t
		if err := unix.Stat(filepath.Join(v.Dir, p)+"/.", &got); err != nil {
			if err := unix.Stat(filepath.Join(v.Dir, p), &got); err != nil {
				t.Fatal(err)
			}
		}
		if got.Mode&0o7777 != want.mode || got.Uid != want.uid || got.Gid != want.gid {
			t.Errorf("%s: %04o %d:%d, want %04o %d:%d", p, got.Mode&0o7777, got.Uid, got.Gid, want.mode, want.uid, want.gid)
		}
	}
}

func TestOtherVolumesCanBeMountedInAVolume(t *testing.T) {
	r := newRig(t)
	r.objects.putConfigMap("settings", false, "a", "1", "file", "2")
	v := r.volume(configMap("settings", false))
	v.Pod.Spec.Containers[0].VolumeMounts = append(v.Pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{
		Name: "other", MountPath: "/v/nested/deep",
	})
	for range 2 {
		v.mustSetUp()
	}
	if info, err := os.Lstat(filepath.Join(v.Dir, "nested/deep")); err != nil || !info.IsDir() {
		t.Errorf("the folder to mount at: %v", err)
	}
	v.has("a", "1", "file", "2")
	// A mount point that would be an existing file.
	v.Pod.Spec.Containers[0].VolumeMounts[1].MountPath = "/v/file"
	v.mustSetUp()
	v.has("a", "1", "file", "2")
}

func TestAFolderForPodsThatALinkLeadsTo(t *testing.T) {
	r := newRig(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.dir, link); err != nil {
		t.Fatal(err)
	}
	r.objects.putSecret("login", false, "password", hidden)
	v := r.volume(secret("login"))
	real := v.Dir
	v.Dir = strings.Replace(v.Dir, r.dir, link, 1)
	for range 2 {
		v.mustSetUp()
	}
	v.has("password", hidden)
	if kinds, _ := (&volume{r: r, Request: volumes.Request{Dir: real}}).mounted(); len(kinds) != 1 {
		t.Errorf("%v is mounted, want exactly one", kinds)
	}
	if err := v.tearDown(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(real); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}

func TestANodeWithoutTokensSaysSo(t *testing.T) {
	r := newRig(t)
	r.tokens = tokens.None{}
	r.restart()
	want := "projected.sources[0].serviceAccountToken: service account shop/default: this node has no tokens to give; leave the source out, or say automountServiceAccountToken: false"
	if err := r.volume(projected(tokenFor(""))).setUp(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAVolumeFromBeginningToEnd uses the volume manager: an update appears without a change of the pod, and the end of
// the pod removes everything.
func TestAVolumeFromBeginningToEnd(t *testing.T) {
	r := newRig(t)
	r.objects.putSecret("login", false, "password", "old")
	v := r.volume(secret("login"))
	manager, err := volumes.New(volumes.Config{
		PodsDir: r.dir, Plugins: r.plugins, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = manager.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	manager.Want(ctx, v.Pod)
	if err := manager.Wait(ctx, v.Pod); err != nil {
		t.Fatal(err)
	}
	v.has("password", "old")
	r.objects.putSecret("login", false, "password", "new")
	manager.Refresh(v.Pod.UID)
	for ctx.Err() == nil {
		if got, _ := os.ReadFile(filepath.Join(v.Dir, "password")); string(got) == "new" {
			break
		}
		<-time.After(time.Millisecond)
	}
	v.has("password", "new")
	if err := manager.Release(ctx, v.Pod.UID); err != nil {
		t.Fatal(err)
	}
	if kinds, _ := v.mounted(); len(kinds) > 0 {
		t.Errorf("%v is mounted, want none", kinds)
	}
}

var _ volumes.Plugin = (*volumeprojected.Plugin)(nil)
