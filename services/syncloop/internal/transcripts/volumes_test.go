package transcripts

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// The durations of the setup and the removal of a volume.
const (
	takesSetUp    = 3 * time.Millisecond
	takesTearDown = 2 * time.Millisecond
)

// mounts is a kind of volume that writes a line for each setup and removal.
type mounts struct {
	volumes.Plugin
	machine *machine
}

// SetUp implements volumes.Plugin. It fails if the story demands it.
func (m mounts) SetUp(ctx context.Context, r volumes.Request) error {
	uid := string(r.Pod.UID)
	m.machine.story.line(workOf(uid+"/"+r.Volume.Name), "volume", fmt.Sprintf("%s of %s is set up", r.Volume.Name, uid))
	time.Sleep(takesSetUp)
	if broken := m.machine.brokenVolume.Load(); broken != nil && *broken == r.Volume.Name {
		return errors.New("the disk has no space left")
	}
	return m.Plugin.SetUp(ctx, r)
}

// TearDown implements volumes.Plugin.
func (m mounts) TearDown(ctx context.Context, dir string) error {
	uid, _, _ := strings.Cut(strings.SplitN(dir, "/pods/", 2)[1], "/")
	m.machine.story.line(workOf(uid+"/"+filepath.Base(dir)), "volume", fmt.Sprintf("%s of %s is removed", filepath.Base(dir), uid))
	time.Sleep(takesTearDown)
	return m.Plugin.TearDown(ctx, dir)
}

// withVolumes adds mounted volumes to a pod.
func withVolumes(p *v1.Pod, all ...v1.Volume) *v1.Pod {
	p.Spec.Volumes = all
	for _, v := range all {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{
			Name: v.Name, MountPath: "/" + v.Name,
		})
	}
	return p
}

func TestVolumes(t *testing.T) {
	writeStory(t, "volumes", "A pod with two volumes, of which one cannot be had at first", func(s *story) {
		limit := resource.MustParse("64Mi")
		scratch := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
		cache := v1.Volume{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}}}
		web, other := withVolumes(pod("web", "web-a", "web:1"), scratch, cache), pod("other", "other-a", "web:1")
		s.note("syncloop starts, with one pod in the only source. It has two volumes, and the node's disk is full.")
		s.source("file", true)
		full := scratch.Name
		s.machine.brokenVolume.Store(&full)
		s.add(configv1.Op_OP_ADD, web)
		s.start()
		s.pass(2 * time.Second)
		s.note("Another pod comes, and does not wait.")
		s.add(configv1.Op_OP_ADD, other)
		s.ready(other.UID)
		s.note("The disk has space again. The volume is tried when its pause is over, and the pod starts by itself.")
		s.machine.brokenVolume.Store(nil)
		s.ready(web.UID)
		s.note("syncloop is killed, and another one starts: volumes are looked at again, and nothing is mounted twice.")
		s.kill()
		s.start()
		s.pass(5 * time.Second)
		s.note("The manifest is removed. The volumes go when nothing of the pod runs any more, and before it is forgotten.")
		s.remove(web)
		s.pass(time.Minute)
	})
}
