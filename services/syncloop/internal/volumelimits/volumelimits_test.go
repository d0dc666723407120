package volumelimits_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/diskusage"
	"github.com/quartet-node/quartet/services/syncloop/internal/volumelimits"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pod(name, limit string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: v1.PodStatus{Phase: v1.PodRunning}}
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	if limit != "" {
		p.Spec.Volumes[0].EmptyDir.SizeLimit = ptr.To(resource.MustParse(limit))
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// TestAPodIsEvictedWhoseVolumeIsLargerThanItMayBe has volumes of 1 MiB each.
func TestAPodIsEvictedWhoseVolumeIsLargerThanItMayBe(t *testing.T) {
	const used = 1 << 20
	pods := []*v1.Pod{
		pod("over", "1023Ki"), pod("at", "1Mi"), pod("under", "2Mi"), pod("unlimited", ""), pod("zero", "0"),
		pod("memory", "1Ki", func(p *v1.Pod) { p.Spec.Volumes[0].EmptyDir.Medium = v1.StorageMediumMemory }),
		pod("pages", "1Ki", func(p *v1.Pod) { p.Spec.Volumes[0].EmptyDir.Medium = v1.StorageMediumHugePages }),
		pod("sized-pages", "1Mi", func(p *v1.Pod) { p.Spec.Volumes[0].EmptyDir.Medium = "HugePages-2Mi" }),
		pod("ended", "1Ki", func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }),
		pod("critical", "1Ki", func(p *v1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_000_000) }),
		pod("missing", "1Ki"), pod("broken", "1Ki"), pod("later", "1Ki"),
	}
	var evicted []string
	var log strings.Builder
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	rounds := make(chan struct{})
	keeper := volumelimits.New(volumelimits.Config{
		Pods: func() ([]*v1.Pod, error) { return pods, nil }, Path: func(p *v1.Pod, v *v1.Volume) string { return p.Name + "/" + v.Name },
		Usage: func(_ context.Context, path string) (diskusage.Usage, error) {
			switch path {
			case "missing/data":
				return diskusage.Usage{}, os.ErrNotExist
			case "broken/data":
				return diskusage.Usage{}, errors.New("input/output error")
			}
			return diskusage.Usage{Bytes: used}, nil
		},
		Evict: func(_ context.Context, uid types.UID, reason, message string, grace int64) error {
			evicted = append(evicted, fmt.Sprintf("%s %s %s%d", uid, reason, message, grace))
			if uid == "later" {
				close(rounds)
			}
			return nil
		},
		Period: time.Minute, Clock: clock, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- keeper.Run(ctx) }()
	for !clock.HasWaiters() {
		<-time.After(time.Millisecond)
	}
	clock.Step(time.Minute)
	<-rounds
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	want := []string{
		`over Evicted Usage of EmptyDir volume "data" exceeds the limit "1023Ki". 1`,
		`pages Evicted Usage of EmptyDir volume "data" exceeds the limit "1Ki". 1`,
		`later Evicted Usage of EmptyDir volume "data" exceeds the limit "1Ki". 1`,
	}
	if !slices.Equal(evicted, want) {
		t.Errorf("evicted\n%s\nwant\n%s", strings.Join(evicted, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(log.String(), `volume \"data\": input/output error`) {
		t.Errorf("the log has %s", &log)
	}
}
