package logrotate

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/containerlog"
)

// files returns the files of /l/0.log from their suffixes: "9" is one rotated at nine, "9.gz" its compressed form.
func files(list string) containerlog.Files {
	var f containerlog.Files
	for _, word := range strings.Fields(list) {
		path := "/l/0.log." + word
		if strings.HasSuffix(word, ".tmp") {
			f.Unused = append(f.Unused, path)
			continue
		}
		f.Rotated = append(f.Rotated, containerlog.Rotated{Path: path, Compressed: strings.HasSuffix(word, ".gz")})
	}
	return f
}

func (p plan) String() string {
	var words []string
	add := func(verb string, paths ...string) {
		for _, path := range paths {
			words = append(words, verb+" "+strings.TrimPrefix(filepath.Base(path), "0.log."))
		}
	}
	add("remove", p.remove...)
	if p.restore != "" {
		add("restore", p.restore)
	}
	if p.rotate {
		words = append(words, "rotate")
	}
	if p.reopen {
		words = append(words, "reopen")
	}
	add("compress", p.compress...)
	return strings.Join(words, ", ")
}

func TestDecide(t *testing.T) {
	const ended, packing = "ended", "packing"
	for _, test := range []struct {
		name  string
		size  int64
		files string
		now   string
		want  string
	}{
		{"small", 99, "", "", ""},
		{"small, with others", 99, "7.gz 8.gz 9", "", ""},
		{"large", 100, "", "", "rotate"},
		{"large, for the second time: the former is done with", 100, "9", "", "rotate, compress 9"},
		{"large, and there are as many as may be", 1000, "6.gz 7.gz 8.gz 9", "", "remove 6.gz, rotate, compress 9"},
		{"more than may be, as after containerLogMaxFiles was lowered", 99, "4.gz 5.gz 6.gz 7.gz 8.gz 9", "", "remove 4.gz, remove 5.gz"},
		{"the same, and large", 100, "4.gz 5.gz 6.gz 7.gz 8.gz 9", "", "remove 4.gz, remove 5.gz, remove 6.gz, rotate, compress 9"},

		{"killed after the rename", missing, "8.gz 9", "", "reopen"},
		{"the same, of a container that has ended since", missing, "8.gz 9", ended, "restore 9"},
		{"killed after the new file was made", 1, "8 9", "", "compress 8"},
		{"killed while it compressed", 1, "8 8.tmp 9", "", "remove 8.tmp, compress 8"},
		{"killed after it had compressed, before it removed: List says unused", 1, "8.tmp 8.gz 9", "", "remove 8.tmp"},
		{"the file in use was removed by somebody", missing, "8.gz", "", "reopen"},
		{"what the runtime writes to is not removed, and not compressed", missing, "3 4 5 6 7 8 9", "", "remove 3, remove 4, remove 5, reopen, compress 6, compress 7, compress 8"},

		{"large while it is packed", 100, "6.gz 7 8 8.tmp 9", packing, "remove 6.gz, rotate"},
		{"large while it is packed, and the oldest one is what is packed", 100, "6 6.tmp 7 8 9", packing, "remove 6, rotate"},

		{"an ended one is not put aside", 1000, "8.gz 9", ended, ""},
		{"an ended one is put in order", 1000, "7 8.tmp 9", ended, "remove 8.tmp, compress 7"},
		{"an ended one without a log", missing, "", ended, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := state{size: test.size, files: files(test.files), running: test.now != ended, packing: test.now == packing}
			if got := decide(s, Policy{MaxSize: 100, MaxFiles: 5}).String(); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
	if got := decide(state{size: 100, files: files("9"), running: true}, Policy{MaxSize: 100, MaxFiles: 2}).String(); got != "remove 9, rotate" {
		t.Errorf("with two files: %q, want %q", got, "remove 9, rotate")
	}
}
