# Projects of files and their limits, for container_quota.sh: the guest has no tools for quotas.
#   project.pl of FILE             prints the number of its project
#   project.pl set FILE PROJECT    gives it that project, and takes the mark "inherit" from it
#   project.pl limits DEVICE PROJECT    prints the most KiB and the most files of a project, 0 for none
use strict;
use warnings;

my ($GET_ATTRIBUTES, $SET_ATTRIBUTES) = (0x801c581f, 0x401c5820);
my ($QUOTACTL, $GET_QUOTA) = (179, 0x80_0007 << 8 | 2);
my $INHERIT = 0x200;

my ($what, $thing, $project) = @ARGV;
if ($what eq 'limits') {
    my $quota = "\0" x 72;
    syscall($QUOTACTL, $GET_QUOTA, "$thing", int $project, $quota) == 0 or die "$!\n";
    my ($kib, $files) = (unpack 'Q6', $quota)[0, 3];
    print "$kib $files\n";
    exit;
}
open my $file, '<', $thing or die "$!\n";
my $attributes = "\0" x 28;
ioctl $file, $GET_ATTRIBUTES, $attributes or die "$!\n";
my @fields = unpack 'L4 a12', $attributes;
if ($what eq 'of') {
    print "$fields[3]\n";
    exit;
}
@fields[0, 3] = ($fields[0] & ~$INHERIT, $project);
$attributes = pack 'L4 a12', @fields;
ioctl $file, $SET_ATTRIBUTES, $attributes or die "$!\n";
print "done\n";
