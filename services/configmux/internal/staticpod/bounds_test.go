package staticpod_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// Limits for 64 KiB of any content: many times those of the worst known manifest, and far below those of an exploding
// one.
const (
	timeBound   = 10 * time.Second
	memoryBound = 256 << 20
)

// bounded decodes a manifest and checks its time and memory.
func bounded(t *testing.T, manifest []byte, origin staticpod.Origin) staticpod.Result {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	got := staticpod.Decode(manifest, origin)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if took > timeBound {
		t.Errorf("%d bytes took %v", len(manifest), took)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > memoryBound {
		t.Errorf("%d bytes took %d MiB of memory", len(manifest), used>>20)
	}
	return got
}

// laughs returns a document of a few lines whose aliases expand to ten to the power of depth texts.
func laughs(depth int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := 1; i < depth; i++ {
		from, to := string(rune('a'+i-1))+"0", string(rune('a'+i))+"0"
		b.WriteString(to + ": &" + to + " [" + strings.Repeat("*"+from+", ", 9) + "*" + from + "]\n")
	}
	return b.String()
}

// fill repeats a text up to 64 KiB.
func fill(text string) string { return strings.Repeat(text, (64<<10)/len(text)) }

func TestAliasesThatExplodeAreRefused(t *testing.T) {
	text := strings.Repeat("x", 32<<10)
	for name, manifest := range map[string]string{
		"a billion laughs":       laughs(9),
		"a thousand billion":     laughs(12),
		"one long text, often":   "a: &a " + text + "\nb: [" + strings.Repeat("*a,", 10000) + "]\n",
		"many documents of some": fill(laughs(5) + "---\n"),
		"merged keys":            "a: &a {k: " + text[:8000] + "}\nb:\n" + fill("- {<<: *a}\n"),
		"keys":                   "a: &a " + text + "\nb:\n" + fill("- {*a : 1}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			got := bounded(t, []byte(manifest+"---\n"+web), origin)
			if len(got.Problems) == 0 || !got.Incomplete ||
				!strings.Contains(strings.Join(messages(got), "\n"), "the aliases of this document") {
				t.Errorf("problems %v, want one of its aliases", got.Problems)
			}
			if len(got.Pods) != 1 || got.Pods[0].Name != "web-node-1" {
				t.Errorf("pods %v, want the good one beside it", got.Pods)
			}
		})
	}
}

func messages(r staticpod.Result) []string {
	var out []string
	for _, p := range r.Problems {
		out = append(out, p.Message)
	}
	return out
}

// Aliases are for pods that share parts of their manifest.
func TestAliasesOfUsualSizeAreFollowed(t *testing.T) {
	pod := onePod(t, `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: a, image: i, env: &env [{name: A, value: "`+strings.Repeat("x", 1000)+`"}]}
  - {name: b, image: i, env: *env}
  initContainers:
  - {name: c, <<: {image: i, env: *env}}
`)
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		if c.Image != "i" || len(c.Env) != 1 || len(c.Env[0].Value) != 1000 {
			t.Errorf("container %+v, want the image and the environment of the first", c)
		}
	}
}

// Decoders replace invalid bytes by a replacement character: such a pod must not run.
func TestWhatIsNoTextIsRefusedWithItsLine(t *testing.T) {
	for name, tc := range map[string]struct{ manifest, want string }{
		"a name of another encoding":   {strings.Replace(web, "name: main", "name: main # \xe4", 1), "line 7: not UTF-8"},
		"JSON of another encoding":     {strings.Replace(item("a"), `"image":"i"`, "\"image\":\"i\",\"args\":[\"\xe4\"]", 1), "line 1: not UTF-8"},
		"UTF-16":                       {"\xff\xfea\x00:\x00", "line 1: not UTF-8"},
		"binary":                       {"\x7fELF\x02\x01\x01\x00\x00", "line 1: a zero byte"},
		"a hole that a crash has left": {web + "---\n" + strings.Repeat("\x00", 4096), "line 10: a zero byte"},
	} {
		t.Run(name, func(t *testing.T) {
			got := staticpod.Decode([]byte(tc.manifest), origin)
			if len(got.Pods) > 0 || len(got.Problems) != 1 || !got.Incomplete ||
				!strings.HasPrefix(got.Problems[0].Message, tc.want) {
				t.Errorf("%d pods, problems %q, want only %q", len(got.Pods), got.Problems, tc.want)
			}
		})
	}
}

func TestProblemsOfFieldsNameTheLine(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(web, old, new, 1) }
	for name, tc := range map[string]struct{ manifest, field, want string }{
		"unknown field":        {with("image:", "imag:"), "spec.containers[0].imag", "line 8: unknown field"},
		"of a second document": {web + "---\n" + with("image:", "imag:"), "spec.containers[0].imag", "line 17: unknown field"},
		"of a list":            {"apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n- kind: Pod\n  metadata: {name: a}\n  spec:\n    container: []\n", "items[1].spec.container", "line 8: "},
		"of JSON":              {"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\n\"metadata\":{\"name\":\"a\"},\n\"sepc\":{}}", "sepc", "line 3: unknown field"},
		"wrong type":           {with("spec:", "spec:\n  hostNetwork: 3"), "spec.hostNetwork", "line 6: must be true or false"},
		"bad value":            {with("    image:", "    imagePullPolicy: Sometimes\n    image:"), "spec.containers[0].imagePullPolicy", "line 8: "},
		"missing":              {with("image: example.com/web:1", "command: [x]"), "spec.containers[0].image", "line 7: Required"},
		"refused":              {web + "  volumes:\n  - name: v\n    secret: {secretName: x}\n", "spec.volumes[0].secret", "line 11: Forbidden"},
		"behind an alias":      {web + "  - &b {name: b, imag: x}\n  initContainers: [*b]\n", "spec.containers[1].imag", "line 9: "},
		"of another kind":      {with("kind: Pod", "kind: Job"), "kind", "line 2: must be Pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got := staticpod.Decode([]byte(tc.manifest), origin)
			for _, p := range got.Problems {
				if p.Field == tc.field && strings.HasPrefix(p.Message, tc.want) {
					return
				}
			}
			t.Errorf("problems %q, want one of %s that begins with %q", got.Problems, tc.field, tc.want)
		})
	}
}

func TestNoManifestTakesLong(t *testing.T) {
	for name, manifest := range map[string]string{
		"comments": fill("#\n"), "comments in a list": "a:\n" + fill("- # x\n"), "documents": fill("---\nx\n"),
		"brackets": fill("["), "braces": fill("{"), "braces of JSON": fill(`{"a":`), "dashes": fill("- "), "questions": fill("? "),
		"a deep list": fill("[") + fill("]"), "quotes": fill("'"), "keys": fill("a: "), "colons": fill(":"), "anchors": fill("&a "),
		"stars": fill("*a "), "tags": fill("!!str "), "one line": fill("x"), "spaces": fill(" "), "tabs": fill("\t"),
		"commas": "[" + fill(","), "a key again": fill("a: 1\n"), "pods of nothing": "apiVersion: v1\nkind: List\nitems:\n" + fill("- {}\n"),
		"containers of nothing": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + fill("  - {}\n"),
		"unknown fields":        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + fill("  - {a: 1}\n"),
		"volumes":               web + "  volumes:\n" + fill("  - {name: a, emptyDir: {}}\n"),
		"block scalars":         fill("- |\n x\n"), "folded scalars": "a: >\n" + fill(" x\n\n"), "escapes": `a: "` + fill(`\u0000`) + `"`,
		"big numbers": "a: " + fill("9"), "line ends": fill("\n"), "line ends of Windows": fill("\r\n"), "merges": "a: &a {}\nb:\n" + fill("- <<: *a\n"),
		"environment": web + "    env:\n" + fill("    - {name: A, value: $(A)}\n"),
	} {
		t.Run(name, func(t *testing.T) { bounded(t, []byte(manifest), origin) })
	}
}
