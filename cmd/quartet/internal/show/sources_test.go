package show

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

func sources() []*configv1.Source {
	return []*configv1.Source{
		{
			Name:       "file",
			Target:     "/etc/kubernetes/manifests",
			Ready:      true,
			Pods:       3,
			LastReadAt: timestamppb.New(ago(4 * time.Second)),
			Mode:       "inotify",
			Errors: []*configv1.SourceError{
				{
					Path:        "/etc/kubernetes/manifests/bad.yaml",
					Pod:         "default/bad",
					Field:       "spec.containers[0].image",
					Message:     "Required value:\nname an image",
					FirstSeenAt: timestamppb.New(ago(time.Minute)),
					LastSeenAt:  timestamppb.New(ago(4 * time.Second)),
					Count:       3,
				},
				{
					Path: "/etc/kubernetes/manifests/half.yaml", Message: "not YAML: the pod's last good version is kept",
					FirstSeenAt: timestamppb.New(ago(time.Second)), LastSeenAt: timestamppb.New(ago(time.Second)), Count: 1,
				},
			},
		},
		{Name: "http", Target: "http://127.0.0.1/pods"},
	}
}

func TestGetSources(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	if got := n.must("get", "sources"); !strings.Contains(got, "set staticPodPath") {
		t.Errorf("without sources: %q", got)
	}
	n.config.set(sources()...)
	golden(t, "sources.txt", n.must("get", "sources"))
	golden(t, "sources.json", n.must("get", "sources", "-o", "json"))
	golden(t, "sources.yaml", n.must("get", "sources", "-o", "yaml"))
	golden(t, "sources-name.txt", n.must("get", "sources", "-o", "name"))
	site := []*configv1.Source{sources()[0], sources()[1]}
	site[0].Node, site[1].Node = "node-1", "node-2.example"
	n.config.set(site...)
	golden(t, "sources-site.txt", n.must("get", "sources"))
	if got, want := n.must("get", "sources", "-o", "name"), "source/node-1/"; !strings.Contains(got, want) {
		t.Errorf("the names of a site's sources are %q, want %q among them", got, want)
	}
}

func TestWatchSourcesPrintsWhatIsNew(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.ConfigMux)
	n.config.set(sources()...)
	r := n.start("get", "sources", "-w", "-o", "name")
	r.until(r.out, "source/file\nsource/http\n")
	stop()
	n.poll(r, r.errOut, "configmux is unreachable")
	n.serve(layout.ConfigMux)
	// A new time of reading is no change, a missing source is one.
	mended := sources()
	mended[0].LastReadAt = timestamppb.New(now)
	n.config.set(mended[0])
	n.poll(r, r.out, "source/http\nsource/file\n")
	if got := r.errOut.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("said more than one line: %q", got)
	}
}
