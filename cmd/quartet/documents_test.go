package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	// quoted matches a command in a sentence, indented one in a block.
	quoted   = regexp.MustCompile("`((?:bin/)?quartet [^`]+)`")
	indented = regexp.MustCompile(`(?m)^ {4}(?:\S+=\S+ )*((?:bin/)?quartet .+)$`)
	// ends matches the end of a command in a shell line.
	ends = regexp.MustCompile(`\s(?:#|\||>|&&|;|\\).*$`)
)

// TestCommandsOfTheDocumentsAreThere checks each command that a reader may type, with its flags.
func TestCommandsOfTheDocumentsAreThere(t *testing.T) {
	documents := []string{"../../README.md", "../../CONTRIBUTING.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			documents = append(documents, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range slices.Concat(quoted.FindAllSubmatch(text, -1), indented.FindAllSubmatch(text, -1)) {
			command := ends.ReplaceAllString(string(match[1]), "")
			found++
			if err := typed(strings.Fields(command)[1:]); err != nil {
				t.Errorf("%s: '%s': %v", filepath.Base(path), command, err)
			}
		}
	}
	if found < 50 {
		t.Errorf("found %d commands, there are more", found)
	}
	for _, wrong := range [][]string{{"health"}, {"get", "health"}, {"get", "pods", "--nope"}, {"get", "-x", "pods"}} {
		if typed(wrong) == nil {
			t.Errorf("quartet %q is taken for a command", wrong)
		}
	}
}

// typed returns an error when a command or a flag does not exist. Values are ignored, because they are often
// placeholders.
func typed(args []string) error {
	root := root()
	root.InitDefaultHelpFlag()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("'%s' has no %q", cmd.CommandPath(), rest[0])
	}
	for _, word := range rest {
		word = strings.Trim(word, "[]")
		if strings.HasPrefix(word, "-") && !hasFlag(cmd, word) {
			return fmt.Errorf("'%s' has no flag %s", cmd.CommandPath(), word)
		}
	}
	return nil
}

// hasFlag reports whether a command has a flag; the word may include a value.
func hasFlag(cmd *cobra.Command, word string) bool {
	cmd.InitDefaultHelpFlag()
	name, _, _ := strings.Cut(word, "=")
	if long, ok := strings.CutPrefix(name, "--"); ok {
		return long == "" || cmd.Flag(long) != nil
	}
	return cmd.Flags().ShorthandLookup(name[1:2]) != nil || cmd.InheritedFlags().ShorthandLookup(name[1:2]) != nil
}
