package csi

import (
	"testing"
)

func TestWhenADriverStages(t *testing.T) {
	for name, c := range map[string]struct {
		record  *record
		mounted bool
		again   bool
		want    bool
	}{
		"nothing":                      {nil, false, false, true},
		"begun":                        {&record{phase: begun, boot: "b"}, false, false, true},
		"uncertain":                    {&record{phase: uncertain, boot: "b", mounted: true}, true, false, true},
		"done":                         {&record{phase: done, boot: "b", mounted: true}, true, false, false},
		"done, but wanted again":       {&record{phase: done, boot: "b", mounted: true}, true, true, true},
		"done before a reboot":         {&record{phase: done, boot: "a", mounted: true}, false, false, true},
		"done, and unmounted since":    {&record{phase: done, boot: "b", mounted: true}, false, false, true},
		"done by mounting nothing":     {&record{phase: done, boot: "b"}, false, false, false},
		"done, and mounted since then": {&record{phase: done, boot: "b"}, true, false, false},
	} {
		if got := mustPublish(c.record, "b", c.mounted, c.again); got != c.want {
			t.Errorf("%s: publish %t, want %t", name, got, c.want)
		}
		if got := mustStage(c.record, "b", c.mounted); !c.again && got != c.want {
			t.Errorf("%s: stage %t", name, got)
		}
	}
	for p, want := range map[phase]bool{begun: false, uncertain: true, done: true} {
		if got := mustUnpublish(record{phase: p}); got != want {
			t.Errorf("%q: unpublish %t, want %t", p, got, want)
		}
	}
}

func TestWhichVolumesAreIdle(t *testing.T) {
	v, other := identity{driver: "d", handle: "1"}, identity{driver: "d", handle: "2"}
	staged := []record{{identity: v}, {identity: other}}
	for name, c := range map[string]struct {
		users []record
		want  int
	}{
		"none is used":         {nil, 2},
		"one is published":     {[]record{{identity: v, phase: done}}, 1},
		"one is going to be":   {[]record{{identity: v, phase: begun}}, 1},
		"inline are not":       {[]record{{identity: v, inline: true}}, 2},
		"a device of the name": {[]record{{identity: identity{driver: "d", handle: "1", block: true, name: "pv"}}}, 2},
		"both are used":        {[]record{{identity: v}, {identity: other}}, 0},
	} {
		if got := idle(staged, c.users); len(got) != c.want {
			t.Errorf("%s: idle() = %v, want %d entries", name, got, c.want)
		}
	}
}

func TestOtherUsersOfAVolumeForOnePod(t *testing.T) {
	v, me := identity{driver: "d", handle: "1"}, place{pod: "me"}
	for name, c := range map[string]struct {
		user record
		want bool
	}{
		"myself":              {record{identity: v, place: me, phase: done}, false},
		"another":             {record{identity: v, place: place{pod: "you"}, phase: done}, true},
		"another, maybe":      {record{identity: v, place: place{pod: "you"}, phase: uncertain}, true},
		"another that waits":  {record{identity: v, place: place{pod: "you"}, phase: begun}, false},
		"another's other one": {record{identity: identity{driver: "d", handle: "2"}, place: place{pod: "you"}, phase: done}, false},
	} {
		if got := takenByOther([]record{c.user}, v, me); got != c.want {
			t.Errorf("%s: takenByOther() = %t, want %t", name, got, c.want)
		}
	}
}
