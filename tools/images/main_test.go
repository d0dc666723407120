package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const ref = "quartet.local/prog:dev"

// program creates a file that is accepted as a program.
func program(t *testing.T, dir, base string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, base)
	if err := os.WriteFile(path, []byte("content of "+base), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// makeImage runs the command and reads the archive.
func makeImage(t *testing.T, out string, args ...string) v1.Image {
	t.Helper()
	if err := run(append([]string{"-name", ref, "-out", out}, args...), t.Output()); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// listing returns each entry of an image's file system as "MODE UID:GID NAME SIZE".
func listing(t *testing.T, img v1.Image) []string {
	t.Helper()
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	var lines []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%04o %d:%d %s %d", header.Mode, header.Uid, header.Gid, header.Name, header.Size))
	}
}

func config(t *testing.T, img v1.Image) v1.Config {
	t.Helper()
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || !file.Created.IsZero() {
		t.Errorf("the image is for %q, made at %v", file.OS, file.Created)
	}
	return file.Config
}

func TestOneProgramRunsAsRoot(t *testing.T) {
	dir := t.TempDir()
	img := makeImage(t, filepath.Join(dir, "a.tar"), "-file", program(t, dir, "prog", 0o700))
	if got := config(t, img); !slices.Equal(got.Entrypoint, []string{"/prog"}) || got.User != "" {
		t.Errorf("it runs %q as %q, want %q and an empty text", got.Entrypoint, got.User, []string{"/prog"})
	}
	want := []string{"1777 0:0 tmp 0", "0755 0:0 prog 15"}
	if got := listing(t, img); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

// An engine shows and finds such an image by the short name, so the archive must have it.
func TestAWellKnownNameIsKeptAsItIs(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "a.tar")
	const short = "jaegertracing/all-in-one:1.62.0"
	if err := run([]string{"-name", short, "-out", out, "-file", program(t, dir, "prog", 0o755)}, t.Output()); err != nil {
		t.Fatal(err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(out) })
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest[0].RepoTags; !slices.Equal(got, []string{short}) {
		t.Errorf("it is named %q, want %q", got, []string{short})
	}
}

// A program that depends on the name of its file is in the image once, with several names.
func TestAProgramWithSeveralNames(t *testing.T) {
	dir := t.TempDir()
	img := makeImage(t, filepath.Join(dir, "a.tar"), "-file", program(t, dir, "prog", 0o755),
		"-link", "/bin/a=/prog", "-link", "/bin/b=a")
	want := []string{"0755 0:0 bin 0", "1777 0:0 tmp 0", "0755 0:0 prog 15", "0777 0:0 bin/a 0", "0777 0:0 bin/b 0"}
	if got := listing(t, img); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

func TestEverythingThatIsAskedForIsInTheImage(t *testing.T) {
	dir := t.TempDir()
	img := makeImage(t, filepath.Join(dir, "a.tar"),
		"-file", program(t, dir, "quartet", 0o755),
		"-file", program(t, dir, "runc", 0o711)+"=/runtime/runc",
		"-file", program(t, dir, "hello.tar", 0o600)+"=/runtime/images/hello.tar",
		"-dir", "/run/quartet=1771:0:10240",
		"-entrypoint", "/quartet runtime", "-user", "10241:10240",
		"-env", "A=1", "-env", "B=x=y", "-label", "org.opencontainers.image.title=quartet")
	got := config(t, img)
	if !slices.Equal(got.Entrypoint, []string{"/quartet", "runtime"}) || got.User != "10241:10240" ||
		!slices.Equal(got.Env, []string{"A=1", "B=x=y"}) || got.Labels["org.opencontainers.image.title"] != "quartet" {
		t.Errorf("its configuration is %+v, want Entrypoint %v, User %q, Env %v and org.opencontainers.image.title %q",
			got, []string{"/quartet", "runtime"}, "10241:10240", []string{"A=1", "B=x=y"}, "quartet")
	}
	want := []string{
		"0755 0:0 run 0", "1771 0:10240 run/quartet 0", "0755 0:0 runtime 0", "0755 0:0 runtime/images 0", "1777 0:0 tmp 0",
		"0755 0:0 quartet 18", "0755 0:0 runtime/runc 15", "0644 0:0 runtime/images/hello.tar 20",
	}
	if got := listing(t, img); !slices.Equal(got, want) {
		t.Errorf("it has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A container that names arguments replaces the command and keeps the entry point.
func TestACommandIsApartFromTheEntryPoint(t *testing.T) {
	dir := t.TempDir()
	img := makeImage(t, filepath.Join(dir, "a.tar"), "-file", program(t, dir, "prog", 0o755), "-cmd", "serve --port=80")
	got := config(t, img)
	if !slices.Equal(got.Entrypoint, []string{"/prog"}) || !slices.Equal(got.Cmd, []string{"serve", "--port=80"}) {
		t.Errorf("it runs %q with %q, want %q and %q",
			got.Entrypoint, got.Cmd, []string{"/prog"}, []string{"serve", "--port=80"})
	}
	img = makeImage(t, filepath.Join(dir, "b.tar"), "-file", program(t, dir, "sh", 0o755), "-entrypoint", "", "-cmd", "sh")
	if got := config(t, img); len(got.Entrypoint) != 0 || !slices.Equal(got.Cmd, []string{"sh"}) {
		t.Errorf("without an entry point it runs %q with %q", got.Entrypoint, got.Cmd)
	}
}

// A file may have a mode, including the set-user-ID bit.
func TestAFileWithAMode(t *testing.T) {
	dir := t.TempDir()
	img := makeImage(t, filepath.Join(dir, "a.tar"), "-file", program(t, dir, "prog", 0o755)+"=/bin/prog=4755",
		"-file", program(t, dir, "data", 0o600)+"=/data=640")
	want := []string{"0755 0:0 bin 0", "1777 0:0 tmp 0", "4755 0:0 bin/prog 15", "0640 0:0 data 15"}
	if got := listing(t, img); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

// The archive does not depend on the umask and the time of the build, or on the order of a map.
func TestTheSameFilesGiveTheSameArchive(t *testing.T) {
	var archives [][]byte
	for _, mode := range []os.FileMode{0o700, 0o755} {
		dir := t.TempDir()
		out := filepath.Join(dir, "a.tar")
		makeImage(t, out, "-file", program(t, dir, "prog", mode), "-dir", "/b=755:0:0", "-dir", "/a/c=700:1:2",
			"-label", "x=1", "-label", "y=2", "-label", "z=3")
		content, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same programs give two archives")
	}
}

// A program that needs a loader and libraries runs only in an image that has them.
func TestADynamicProgramNeedsItsLibraries(t *testing.T) {
	dir := t.TempDir()
	var libraries []string
	for linked, flags := range map[string]string{"dynamic": "-linkmode=external", "static": "-linkmode=external -extldflags=-static"} {
		source := filepath.Join(dir, linked+".go")
		text := "package main\n\nimport \"C\"\n\nfunc main() {}\n"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		build := exec.Command("go", "build", "-ldflags", flags, "-o", filepath.Join(dir, linked), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-mod=mod")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		args := []string{"-name", ref, "-out", filepath.Join(dir, "a.tar"), "-file", filepath.Join(dir, linked)}
		err := run(args, t.Output())
		if refused := err != nil && strings.Contains(err.Error(), "does not have its loader /"); refused != (linked == "dynamic") {
			t.Errorf("%s: run() error = %v, want refused %v", linked, err, linked == "dynamic")
		}
		if linked == "static" {
			continue
		}
		out, err := exec.Command("ldd", filepath.Join(dir, linked)).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(out)) {
			if strings.HasPrefix(word, "/") {
				libraries = append(libraries, "-file", word+"="+word)
			}
		}
		if err := run(append(args, libraries...), t.Output()); err != nil {
			t.Errorf("with %q: %v", libraries, err)
		}
		loader := slices.IndexFunc(libraries, func(arg string) bool { return strings.Contains(arg, "/ld-") })
		if err := run(append(args, "-file", libraries[loader]), t.Output()); err == nil || !strings.Contains(err.Error(), "does not have its library libc.so") {
			t.Errorf("with its loader alone: %v", err)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	dir := t.TempDir()
	prog := program(t, dir, "prog", 0o755)
	cases := map[string]struct {
		args []string
		says string
	}{
		"no tag":                {[]string{"-name", "quartet.local/prog", "-file", prog}, `reading -name "quartet.local/prog"`},
		"no file":               {nil, "-file is missing"},
		"a file that is away":   {[]string{"-file", "/no/such/file"}, "/no/such/file"},
		"a word":                {[]string{"-file", prog, "word"}, `"word" is not a flag`},
		"a user by name":        {[]string{"-file", prog, "-user", "nobody"}, `-user "nobody" is not UID:GID`},
		"a relative place":      {[]string{"-file", prog + "=bin/prog"}, `"bin/prog" is not an absolute path`},
		"a place outside":       {[]string{"-file", prog + "=/../prog"}, `"/../prog" is not an absolute path`},
		"a file's mode":         {[]string{"-file", prog + "=/prog=rwx"}, `the mode "rwx" is not octal`},
		"a place taken":         {[]string{"-file", prog, "-file", prog}, "two files have the place /prog"},
		"a link's place taken":  {[]string{"-file", prog, "-link", "/prog=other"}, "/prog is named twice"},
		"a link to nothing":     {[]string{"-file", prog, "-link", "/other"}, "as in /bin/kubectl=kube"},
		"a directory twice":     {[]string{"-file", prog, "-dir", "/a=755:0:0", "-dir", "/a=700:0:0"}, "/a is named twice"},
		"a directory's mode":    {[]string{"-file", prog, "-dir", "/a=999:0:0"}, `the mode "999" is not octal`},
		"a directory's owner":   {[]string{"-file", prog, "-dir", "/a=755:root:0"}, `the user "root" is not a number`},
		"a directory's group":   {[]string{"-file", prog, "-dir", "/a=755:0:wheel"}, `the group "wheel" is not a number`},
		"a directory in short":  {[]string{"-file", prog, "-dir", "/a"}, "as in /run/quartet=1771:0:10240"},
		"a foreign entry point": {[]string{"-file", prog, "-entrypoint", "/sh -c"}, "-entrypoint /sh is not one of the files"},
		"a variable":            {[]string{"-file", prog, "-env", "PATH"}, "it is not NAME=VALUE"},
		"a label":               {[]string{"-file", prog, "-label", "=x"}, "it is not NAME=VALUE"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			args := append([]string{"-name", ref, "-out", filepath.Join(t.TempDir(), "a.tar")}, c.args...)
			err := run(args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}
