package csinode

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
)

var start = time.Unix(1_700_000_000, 0)

func driver(name, id string, volumes int64, topology map[string]string) *enginev1.CSIDriver {
	d := &enginev1.CSIDriver{Name: name, NodeId: id, Topology: topology}
	if volumes > 0 {
		d.AllocatableVolumes = proto.Int64(volumes)
	}
	return d
}

func known(drivers ...*enginev1.CSIDriver) inventory.Drivers {
	out := inventory.Drivers{Known: map[string]*enginev1.CSIDriver{}, Gone: map[string]bool{}, Since: start}
	for _, d := range drivers {
		out.Known[d.GetName()] = d
	}
	return out
}

func entry(name, id string, count int32, keys ...string) storagev1.CSINodeDriver {
	e := storagev1.CSINodeDriver{Name: name, NodeID: id, TopologyKeys: keys}
	if count > 0 {
		e.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(count)}
	}
	return e
}

func theNode() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}} }

// text returns the entries of a CSINode in short.
func text(object *storagev1.CSINode) string {
	var parts []string
	for _, e := range object.Spec.Drivers {
		count := "-"
		if c := countOf(e); c != nil {
			count = fmt.Sprint(*c)
		}
		parts = append(parts, fmt.Sprintf("%s=%s/%s/%s", e.Name, e.NodeID, strings.Join(e.TopologyKeys, "+"), count))
	}
	return strings.Join(parts, " ")
}

func TestNextVersions(t *testing.T) {
	gone := known()
	gone.Gone["a"] = true
	unknown := known()
	unknown.Since = time.Time{}
	for name, tt := range map[string]struct {
		there   []storagev1.CSINodeDriver
		drivers inventory.Drivers
		after   time.Duration
		strict  bool
		want    []string
	}{
		"nothing":             {drivers: known()},
		"the first":           {drivers: known(driver("b", "i", 3, map[string]string{"z": "1", "r": "2"}), driver("a", "i", 0, nil)), want: []string{"a=i//- b=i/r+z/3"}},
		"the same":            {there: []storagev1.CSINodeDriver{entry("a", "i", 3, "z", "r")}, drivers: known(driver("a", "i", 3, map[string]string{"z": "1", "r": "2"}))},
		"keys in their order": {there: []storagev1.CSINodeDriver{entry("a", "i", 3, "z", "r")}, drivers: known(driver("a", "i", 4, map[string]string{"z": "1", "r": "2"})), want: []string{"a=i/z+r/4"}},
		"another count":       {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: known(driver("a", "i", 4, nil)), want: []string{"a=i//4"}},
		"no count any more":   {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: known(driver("a", "i", 0, nil)), want: []string{"a=i//-"}},
		"strict count":        {there: []storagev1.CSINodeDriver{entry("a", "i", 3), entry("b", "i", 0)}, drivers: known(driver("a", "i", 4, nil), driver("b", "i", 0, nil)), strict: true, want: []string{"b=i//-", "b=i//- a=i//4"}},
		"another ID":          {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: known(driver("a", "j", 3, nil)), want: []string{"", "a=j//3"}},
		"other keys":          {there: []storagev1.CSINodeDriver{entry("a", "i", 0, "z")}, drivers: known(driver("a", "i", 0, map[string]string{"y": "1"})), want: []string{"", "a=i/y/-"}},
		"huge count":          {drivers: known(driver("a", "i", 1<<40, nil)), want: []string{"a=i//2147483647"}},
		"deregistered":        {there: []storagev1.CSINodeDriver{entry("a", "i", 3), entry("b", "i", 0)}, drivers: gone, want: []string{"b=i//-"}},
		"not again yet":       {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: known(), after: patience - 1},
		"never again":         {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: known(), after: patience, want: []string{""}},
		"syncloop is away":    {there: []storagev1.CSINodeDriver{entry("a", "i", 3)}, drivers: unknown, after: 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			object := fresh(theNode())
			object.Spec.Drivers = tt.there
			var got []string
			for range 5 {
				following := next(object, accept(theNode(), tt.drivers), start.Add(tt.after), tt.strict)
				if following == nil {
					break
				}
				object = following
				got = append(got, text(object))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("the versions are %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheOwnerIsTheNodeItself(t *testing.T) {
	object := fresh(theNode())
	if !isOwned(object, theNode()) {
		t.Error("a new CSINode does not belong to its Node")
	}
	for _, owner := range []metav1.OwnerReference{
		{Kind: "Node", Name: "n", UID: "earlier"}, {Kind: "Node", Name: "m", UID: "u"}, {Kind: "Pod", Name: "n", UID: "u"},
	} {
		object.OwnerReferences = []metav1.OwnerReference{owner}
		if isOwned(object, theNode()) {
			t.Errorf("it belongs to %v", owner)
		}
	}
	const plugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
		"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
	if got := object.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; got != plugins {
		t.Errorf("the migrated plugins are %s", got)
	}
	object.Annotations = nil
	again := next(object, accept(theNode(), known()), start, false)
	if again.Annotations[v1.MigratedPluginsAnnotationKey] != plugins {
		t.Error("a missing annotation is not added")
	}
}

func TestATopologyThatContradictsTheNodeIsRefused(t *testing.T) {
	node := theNode()
	node.Labels = map[string]string{"zone": "a"}
	drivers := known(
		driver("good", "i", 0, map[string]string{"zone": "a", "rack": "1"}),
		driver("wrong", "i", 0, map[string]string{"zone": "b"}),
		driver("late", "i", 0, map[string]string{"rack": "2"}),
	)
	got := accept(node, drivers)
	want := map[string]string{
		"wrong": `detected topology value collision: driver reported "zone":"b" but existing label is "zone":"a"`,
		"late":  `detected topology value collision: driver reported "rack":"2" but existing label is "rack":"1"`,
	}
	// "good" comes before "late" by its name.
	if !maps.Equal(got.refused, want) {
		t.Errorf("refused %v", got.refused)
	}
	change := metadataOf(node, got, start, true)
	if !maps.Equal(change.labels, map[string]string{"rack": "1"}) || *change.annotation != `{"good":"i"}` {
		t.Errorf("the change is %v, %s", change.labels, *change.annotation)
	}
	object := fresh(node)
	object.Spec.Drivers = []storagev1.CSINodeDriver{entry("wrong", "i", 0, "zone")}
	following := next(object, got, start.Add(time.Hour), false)
	if text(following) != "wrong=i/zone/- good=i/rack+zone/-" {
		t.Errorf("the CSINode becomes %s", text(following))
	}
}

func TestTheAnnotationHasTheIDs(t *testing.T) {
	gone := known(driver("b", "j", 0, nil))
	gone.Gone["a"] = true
	for name, tt := range map[string]struct {
		there    string
		drivers  inventory.Drivers
		removing bool
		want     string
	}{
		"the first":             {"", known(driver("a", "i", 0, nil)), false, `{"a":"i"}`},
		"the same":              {`{"a":"i"}`, known(driver("a", "i", 0, nil)), true, "unchanged"},
		"one is gone":           {`{"a":"i","b":"j"}`, gone, true, `{"b":"j"}`},
		"its removal is later":  {`{"a":"i","b":"j"}`, gone, false, "unchanged"},
		"one may come again":    {`{"a":"i"}`, known(), true, "unchanged"},
		"nobody can read it":    {`[1`, known(driver("a", "i", 0, nil)), false, `{"a":"i"}`},
		"null":                  {`null`, known(driver("a", "i", 0, nil)), false, `{"a":"i"}`},
		"the only one is gone":  {`{"a":"i"}`, inventory.Drivers{Gone: map[string]bool{"a": true}, Since: start}, true, ""},
		"nobody has registered": {"", known(), true, "unchanged"},
	} {
		node := theNode()
		if tt.there != "" {
			node.Annotations = map[string]string{annotationNodeIDs: tt.there}
		}
		got := "unchanged"
		if change := metadataOf(node, accept(node, tt.drivers), start, tt.removing); change.annotation != nil {
			got = *change.annotation
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// TestTheEndIsWhatIsRegistered: whatever there is, a few versions later the CSINode has the registered drivers, and an
// API server accepts each version.
func TestTheEndIsWhatIsRegistered(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	rapid.Check(t, func(t *rapid.T) {
		object, drivers := fresh(theNode()), known()
		for _, name := range rapid.SliceOfDistinct(names, rapid.ID).Draw(t, "there") {
			object.Spec.Drivers = append(object.Spec.Drivers, entry(name, rapid.SampledFrom([]string{"i", "j"}).Draw(t, "ID"),
				rapid.Int32Range(0, 2).Draw(t, "count"), rapid.SliceOfDistinct(names, rapid.ID).Draw(t, "keys")...))
		}
		for _, name := range rapid.SliceOfDistinct(names, rapid.ID).Draw(t, "known") {
			topology := map[string]string{}
			for _, key := range rapid.SliceOfDistinct(names, rapid.ID).Draw(t, "keys") {
				topology[key] = "v"
			}
			drivers.Known[name] = driver(name, rapid.SampledFrom([]string{"i", "j"}).Draw(t, "ID"),
				rapid.Int64Range(0, 2).Draw(t, "count"), topology)
		}
		strict := rapid.Bool().Draw(t, "strict")
		for versions := 0; ; versions++ {
			following := next(object, accept(theNode(), drivers), start.Add(time.Hour), strict)
			if following == nil {
				break
			}
			if versions == maxWrites {
				t.Fatalf("after %d versions it is %s", versions, text(object))
			}
			for _, before := range object.Spec.Drivers {
				for _, after := range following.Spec.Drivers {
					same := before.NodeID == after.NodeID && slices.Equal(before.TopologyKeys, after.TopologyKeys)
					sameCount := ptr.Equal(countOf(before), countOf(after))
					if before.Name == after.Name && (!same || strict && !sameCount) {
						t.Fatalf("the entry of %s is changed from %v to %v", before.Name, before, after)
					}
				}
			}
			object = following
		}
		var want []storagev1.CSINodeDriver
		for _, name := range slices.Sorted(maps.Keys(drivers.Known)) {
			want = append(want, entryOf(drivers.Known[name]))
		}
		got := slices.SortedFunc(slices.Values(object.Spec.Drivers), func(a, b storagev1.CSINodeDriver) int {
			return strings.Compare(a.Name, b.Name)
		})
		for i := range got {
			slices.Sort(got[i].TopologyKeys)
		}
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(got)
		if len(want)+len(got) > 0 && normal(a) != normal(b) {
			t.Fatalf("the end is %s, want %s", b, a)
		}
	})
}

// normal replaces empty lists, which the API server does not distinguish from missing ones.
func normal(data []byte) string { return strings.ReplaceAll(string(data), "null", "[]") }
